"""Runs, data and caches in object stores: pulled before a command reads them, pushed when it has changed them."""

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


def _of(folder: Path) -> Mirror | None:
    url = paths.url_of(folder)
    return None if url is None else Mirror(folder.absolute(), url)


def _worked_in(folder: Path) -> bool:
    """Whether a process of this machine holds the lock of a run: it pulls and pushes itself."""
    return locks.is_held(folder / ".lock")


def pull(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """Update a mirror from its store, for the names that are wanted. A folder that is no mirror stays as it is."""
    if (store := _of(folder)) is not None and not _worked_in(folder):
        store.pull(wanted)


def pull_all(root: Path, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """`pull` each of the folders in `root`."""
    store = _of(root)
    for name in [] if store is None else store.names():
        pull(root / name, wanted)


def push(folder: Path) -> None:
    """Store what has changed in a mirror. Does nothing for a folder that is no mirror."""
    if (store := _of(folder)) is not None and not _worked_in(folder):
        store.push()


def push_all(root: Path) -> None:
    """`push` each of the folders in `root`."""
    for path in sorted(root.glob("[!.]*/")) if paths.url_of(root) else ():
        push(path)


def remove(folder: Path) -> None:
    """Remove from the store the folder that `folder` was a mirror of."""
    if (store := _of(folder)) is not None:
        store.remove()


class Uploads:
    """Stores the run that this process trains while it trains. Does nothing for a folder that is no mirror."""

    def __init__(self, folder: Path | None) -> None:
        self._store = None if folder is None else _of(folder)
        self._trainer: str | None = None
        self._due, self._ends = threading.Event(), threading.Event()
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

    def soon(self) -> None:
        """Store the current state in the background. Raises SupersededError if a push before found another trainer."""
        if self._superseded is not None:
            raise self._superseded
        self._due.set()

    def finish(self) -> None:
        """Store all of it. Raises UserError where that is not possible."""
        if self._thread is not None:
            self._ends.set()
            self._due.set()
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
        while self._due.wait() and not self._ends.is_set():
            self._due.clear()
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
    """Pull a run, and store it until the block ends, also with an error. None: another process of the run does this."""
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
