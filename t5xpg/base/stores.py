"""Runs, data and caches in object stores: pulled before a command reads them, pushed after it has changed them."""

import contextlib
import os
import platform
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from t5xpg.base import locks, paths
from t5xpg.base.errors import UserError
from t5xpg.base.mirror import Mirror, SupersededError


def _mirror_of(folder: Path) -> Mirror | None:
    url = paths.url_of(folder)
    return None if url is None else Mirror(folder.absolute(), url)


def _is_in_use(folder: Path) -> bool:
    """True if a process of this machine holds the lock of a run: it pulls and pushes by itself."""
    return locks.is_held(folder / ".lock")


def pull(folder: Path, name_filter: Callable[[str], bool] = lambda name: True) -> None:
    """Update a mirror from its store, only files whose names `name_filter` accepts. Does nothing for other folders."""
    if (store := _mirror_of(folder)) is not None and not _is_in_use(folder):
        store.pull(name_filter)


def pull_all(root: Path, name_filter: Callable[[str], bool] = lambda name: True) -> None:
    """`pull` each of the folders in `root`."""
    store = _mirror_of(root)
    for name in [] if store is None else store.names():
        pull(root / name, name_filter)


def push(folder: Path) -> None:
    """Store the changes in a mirror. Does nothing for a folder that is no mirror."""
    if (store := _mirror_of(folder)) is not None and not _is_in_use(folder):
        store.push()


def push_all(root: Path) -> None:
    """`push` each of the folders in `root`."""
    for path in sorted(root.glob("[!.]*/")) if paths.url_of(root) else ():
        push(path)


def remove(folder: Path) -> None:
    """Remove the folder in the store whose mirror `folder` was."""
    if (store := _mirror_of(folder)) is not None:
        store.remove()


class Uploads:
    """Stores the run that this process trains, in the background. Does nothing for a folder that is no mirror."""

    def __init__(self, folder: Path | None) -> None:
        self._store = None if folder is None else _mirror_of(folder)
        self._trainer: str | None = None
        self._push_due, self._finishing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._superseded: SupersededError | None = None
        if self._store is not None:
            self._store.pull()

    def begin(self) -> None:
        """Name this process in the store as the trainer. Raises SupersededError if another process has just done so."""
        if self._store is not None:
            since = datetime.now(UTC).isoformat(" ", "milliseconds")
            self._trainer = f"process {os.getpid()} on {platform.node()}, since {since}"
            self._store.push(self._trainer, begin=True)
            self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
            self._thread.start()

    def push_soon(self) -> None:
        """Store the current state in the background. Raises SupersededError if a push has found another trainer."""
        if self._superseded is not None:
            raise self._superseded
        self._push_due.set()

    def finish(self) -> None:
        """Store the final state. Raises UserError if that is not possible."""
        if self._thread is not None:
            self._finishing.set()
            self._push_due.set()
            self._thread.join()
        if self._superseded is not None:
            raise self._superseded
        if self._store is not None:
            try:
                self._store.push(self._trainer)
            except SupersededError:
                raise
            except UserError as error:
                raise UserError(
                    f"{error} What it lacks is in {self._store.folder}: the same command stores it."
                ) from error

    def _work(self) -> None:
        assert self._store is not None
        warned = False
        while self._push_due.wait() and not self._finishing.is_set():
            self._push_due.clear()
            try:
                self._store.push(self._trainer)
            except SupersededError as error:
                self._superseded = error
                return
            except UserError as error:
                if not warned:
                    print(f"warning: {error} The training goes on; each checkpoint tries again.", flush=True)
                warned = True


@contextlib.contextmanager
def training(folder: Path | None) -> Iterator[Uploads]:
    """Pull a run, and store it until the block ends, also by an error. None: another process of the run does this."""
    uploads = Uploads(folder)
    try:
        yield uploads
    except BaseException as failure:
        try:
            if not isinstance(failure, SupersededError):
                uploads.finish()
        except UserError as error:
            print(f"warning: {error}", flush=True)
        raise
    uploads.finish()
