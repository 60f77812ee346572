"""Folders in object stores (s3://, gs://, all that fsspec knows): pulled before a command reads them, pushed after it
has changed them. Programs work in a mirror on this machine (`paths.local`). In the store:

    <folder>/objects/<name>/<sha256>-<push>               the content of a file, as a push stored it
    <folder>/manifests/<generation>-<number>-<push>.json  {"files": {name: [object, size, sha256]}, "changed", "removed"
                                                          (names), "trainer"}

Every object has a name of its own: none is overwritten, and only `remove` deletes. A push writes its manifest last. The
last manifest by name is the state; where pushes wrote several of one generation and number at the same time, the
changes of all count, in the order of their names. A training begins a generation: what an earlier trainer still sends
has no effect. `.t5xpg_store.json` in the mirror records the state that it had.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Self

from t5xpg.base import digests, files, locks, paths
from t5xpg.base.errors import UserError, first_line
from t5xpg.base.progress import Progress

_RECORD = ".t5xpg_store.json"
# Names that stay on this machine: hidden files, and checkpoints that are being written or removed, or are damaged.
_LOCAL = re.compile(r"\..*|\d+\.(unfinished|removed|orbax).*|damaged")
_TRIES, _TRANSFERS = 5, 8
_GROWING = 1 << 26  # bytes; a larger file does not change while it is sent
_SILENT_SECONDS = 20.0
# s3fs itself tries five times; botocore's tries within each of them would take seven minutes.
_WAITS = {"config_kwargs": {"connect_timeout": 10, "read_timeout": 20, "retries": {"max_attempts": 0}}}


class SupersededError(UserError):
    """Another process has begun to train the run."""

    def __init__(self, url: str, trainer: str) -> None:
        super().__init__(
            f"{url} is trained by another process: {trainer}. This one stops. To train here instead, stop the other "
            "one and type the same command again."
        )


@dataclass(frozen=True)
class _State:
    """The state of the folder; number 0: of an empty store. files: {name: [object, size, sha256]}."""

    generation: int = 0
    number: int = 0
    trainer: str = ""
    files: dict[str, list[Any]] = field(default_factory=dict)


@dataclass
class _Record:
    """The state that the mirror had. files: {name: sha256}. begun: the trainer that this machine last named there."""

    generation: int = -1
    files: dict[str, str] = field(default_factory=dict)
    begun: str = ""


class Mirror:
    """A folder of a store and its mirror. The methods raise UserError if the store cannot be reached."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self._record = folder, url, folder / _RECORD
        try:
            from fsspec.core import url_to_fs

            waits = _WAITS if url.startswith("s3:") else {}
            self._fs, self._root = url_to_fs(url, use_listings_cache=False, **waits)
        except (ImportError, ValueError) as error:  # its message names the package to install
            raise UserError(f"{url}: {error}. Expected s3://…, gs://…, or another name that fsspec knows.") from None

    @contextlib.contextmanager
    def _exchange(self, access: str) -> Iterator[None]:
        """Turn errors of the store into UserError, and report a store that is silent. access: "read" or "written"."""
        line = f"{self.url} is still being {access} after {_SILENT_SECONDS:.0f} s …"
        timer = threading.Timer(_SILENT_SECONDS, Progress.print, [line])
        timer.daemon = True
        timer.start()
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # each library has its own
            raise UserError(f"{self.url} cannot be {access} ({type(error).__name__}: {first_line(error)}).") from error
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_Record]:
        """Hold the lock of the mirror, against other processes of this machine; yields the record."""
        lock = self.folder.parent / f".{self.folder.name}.store.lock"
        with locks.hold(lock, doing=f"exchanging files with {self.url}", instead="", wait=Progress.print):
            files.remove_abandoned(self.folder)
            yield _Record(**files.json_object_if_any(self._record))

    def names(self) -> list[str]:
        """The names of the folders in the store's folder."""
        with self._exchange("read"):
            if not (names := self._list(self._root)):
                bucket = self._root.split("/")[0]
                if bucket and not self._fs.exists(bucket):
                    raise UserError(f"{self.url} cannot be read: no bucket {bucket!r} is there for these credentials.")
            return [PurePosixPath(name).name for name in names]

    def _list(self, folder: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(self._fs.ls(folder, detail=False))
        return []

    def _state(self) -> _State:
        with self._exchange("read"):
            if not (names := self._list(f"{self._root}/manifests")):
                return _State()
            start = names[-1].rpartition("-")[0]
            manifests = [json.loads(self._fs.cat_file(name)) for name in names if name.startswith(f"{start}-")]
            stored: dict[str, list[Any]] = manifests[0]["files"]
            for manifest in manifests[1:]:
                stored = {name: entry for name, entry in stored.items() if name not in manifest["removed"]}
                stored |= {name: manifest["files"][name] for name in manifest["changed"]}
            if not all(digests.is_inside(name) and digests.is_inside(entry[0]) for name, entry in stored.items()):
                raise ValueError("a name in its manifest leads out of the folder")
            generation, number = map(int, PurePosixPath(start).name.split("-"))
            return _State(generation, number, manifests[-1]["trainer"], stored)

    def _scan(self) -> dict[str, str]:
        """{name: sha256} of the files in the mirror; folders in it that are mirrors are left out. All are listed before
        one is read, so that records are as new as the listed checkpoints."""

        def belongs(parent: str, name: str) -> bool:
            return not _LOCAL.fullmatch(name) and not Path(parent, name, _RECORD).exists()

        names = list[str]()
        for parent, folders, inside in os.walk(self.folder):
            folders[:] = [name for name in folders if belongs(parent, name)]
            names += [
                Path(parent, name).relative_to(self.folder).as_posix() for name in inside if belongs(parent, name)
            ]
        return digests.digests(self.folder, names)

    def pull(self, name_filter: Callable[[str], bool] = lambda name: True) -> None:
        """Update the mirror from the store, only the files whose names `name_filter` accepts. Changes made here since
        the last exchange stay, unless another trainer has begun since."""
        with self._locked() as record:
            state = self._state()
            if record.files and not state.files:
                raise UserError(
                    f"{self.url} holds nothing any more, and {self.folder} is a copy of what it held. To start over, "
                    f"delete the copy; to store it again, delete {_RECORD} in it."
                )
            if not state.number:
                return
            here = self._scan()
            is_reset = state.generation != record.generation and state.trainer != record.begun
            keeps_changes = not is_reset and not digests.verifying()
            other = {name for name, (_, _, sha256) in state.files.items() if here.get(name) != sha256}
            if keeps_changes:
                other = {name for name in other if here.get(name) == record.files.get(name)}
            fetched = sorted(filter(name_filter, other))
            # an earlier version of a file that is not fetched would take the place of the store's in the next push
            gone = {name for name in here.keys() - state.files.keys() if is_reset or name in record.files}
            stale = other.difference(fetched)
            for name in stale | gone:
                self._remove(name)
            self._fetch(state, fetched)
            names = {*here, *record.files, *fetched} - stale
            known = {name: sha256 for name, (_, _, sha256) in state.files.items() if name in names}
            if (new := _Record(state.generation, known, record.begun)) != record:
                files.write_json(self._record, vars(new))

    def _fetch(self, state: _State, names: list[str]) -> None:
        """Put files of the state into the mirror."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if names:
            size = files.size_text(sum(state.files[name][1] for name in names))
            Progress.print(f"{self.url}: {len(names)} files, {size}, to {self.folder}")
        # if this process is killed, the next one removes the scratch folder
        scratch = tempfile.TemporaryDirectory(".tmp", files.temporary_prefix("pull"), self.folder)
        with self._exchange("read"), scratch as folder, ThreadPoolExecutor(_TRANSFERS) as pool:

            def fetch(name: str) -> None:
                temporary, (source, _, sha256), problem = Path(folder, uuid.uuid4().hex), state.files[name], "missing"
                with contextlib.suppress(FileNotFoundError):
                    self._fs.get_file(f"{self._root}/{source}", str(temporary))
                    problem = "" if files.sha256_of_file(temporary) == sha256 else "damaged: it is not what was stored"
                if problem:
                    manifests = f"{self.url}/manifests"
                    remedy = f"An earlier state is read after the last file of {manifests} is deleted."
                    raise UserError(f"{self.url}/{source} is {problem}. {remedy}")
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(temporary, self.folder / name)

            list(pool.map(fetch, names))

    def _remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a folder is not empty, or not there
            for parent in PurePosixPath(name).parents[:-1]:
                (self.folder / parent).rmdir()

    def push(self, trainer: str = "", *, begin: bool = False) -> None:
        """Store the changes made here. trainer: the process that trains the run. begin: only name it in the store."""
        push = uuid.uuid4().hex[:12]
        with self._locked() as record, self._exchange("written"), ThreadPoolExecutor(_TRANSFERS) as pool:
            for _ in range(_TRIES):
                here = record.files if begin else self._scan()
                changed = [name for name, sha256 in here.items() if record.files.get(name) != sha256]
                removed = sorted(record.files.keys() - here.keys())
                if not (begin or changed or removed):
                    return None
                state = self._state()
                if record.files and not state.files:
                    raise UserError(f"{self.url} was removed. What is here stays in {self.folder}.")
                if trainer and state.number and state.generation != record.generation:
                    raise SupersededError(self.url, state.trainer)
                try:
                    sent = dict(zip(changed, pool.map(lambda name: self._send(name, push), changed), strict=True))
                except FileNotFoundError:  # removed since it was listed
                    continue
                if begin:
                    record.begun = trainer
                    files.write_json(self._record, vars(record))
                stored = {name: entry for name, entry in state.files.items() if name not in removed} | sent
                new = _State(state.generation + begin, state.number + 1, trainer or state.trainer, stored)
                self._write_manifest(new, changed, removed, push)
                state = self._state()
                if begin and state.trainer != trainer:
                    raise SupersededError(self.url, state.trainer)
                if any(state.files.get(name) != sent.get(name) for name in [*changed, *removed]):
                    continue  # it was not the last one: another push was faster
                generation = state.generation if begin or record.generation < 0 else record.generation
                known = here | {name: sha256 for name, (_, _, sha256) in sent.items()}
                return files.write_json(self._record, vars(_Record(generation, known, record.begun)))
            raise UserError(f"{self.url} cannot be written: others change it, or {self.folder}, at the same time.")

    def _send(self, name: str, push: str) -> list[Any]:
        """Store a file; returns its entry of the manifest."""
        path = self.folder / name
        if (size := path.stat().st_size) >= _GROWING:
            sha256 = files.sha256_of_file(path)
            target = f"objects/{name}/{sha256[:16]}-{push}"
            self._fs.put_file(str(path), f"{self._root}/{target}")
            return [target, size, sha256]
        content = path.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        target = f"objects/{name}/{sha256[:16]}-{push}"
        self._fs.pipe_file(f"{self._root}/{target}", content)
        return [target, len(content), sha256]

    def _write_manifest(self, state: _State, changed: list[str], removed: list[str], push: str) -> None:
        manifest = {"files": state.files, "changed": changed, "removed": removed, "trainer": state.trainer}
        name = f"{state.generation:06d}-{state.number:06d}-{push}.json"
        self._fs.pipe_file(f"{self._root}/manifests/{name}", json.dumps(manifest).encode())

    def remove(self) -> None:
        """Remove the whole folder in the store. A manifest of no files comes first and goes last: while it is there,
        the folder counts as empty."""
        with self._exchange("written"), contextlib.suppress(FileNotFoundError):
            state = self._state()
            self._write_manifest(_State(state.generation + 1, state.number + 1), [], [], "removed")
            for name in self._fs.find(self._root):
                if not name.endswith("-removed.json"):
                    self._fs.rm_file(name)
            self._fs.rm(self._root, recursive=True)


def _mirror_of(folder: Path) -> Mirror | None:
    """The mirror in a folder, unless a process of this machine trains in it, which pulls and pushes by itself."""
    url = paths.url_of(folder)
    return None if url is None or locks.is_held(folder / ".lock") else Mirror(folder.absolute(), url)


def pull(folder: Path, name_filter: Callable[[str], bool] = lambda name: True) -> None:
    """Update a mirror from its store, only files whose names `name_filter` accepts. Does nothing for other folders."""
    if mirror := _mirror_of(folder):
        mirror.pull(name_filter)


def pull_all(root: Path, name_filter: Callable[[str], bool] = lambda name: True) -> None:
    """`pull` each of the folders in `root`; one that cannot be read is reported, and left out."""
    mirror = _mirror_of(root)
    for name in mirror.names() if mirror else ():
        try:
            pull(root / name, name_filter)
        except UserError as error:
            Progress.print(f"warning: {error}")


def push(folder: Path) -> None:
    """Store the changes in a mirror. Does nothing for a folder that is no mirror."""
    if mirror := _mirror_of(folder):
        mirror.push()


def push_all(root: Path) -> None:
    """`push` each of the folders in `root`."""
    for path in sorted(root.glob("[!.]*/")) if paths.url_of(root) else ():
        push(path)


def remove(folder: Path) -> None:
    """Remove the folder in the store whose mirror `folder` was."""
    if mirror := _mirror_of(folder):
        mirror.remove()


class Uploads:
    """Stores the run that this process trains, in the background and at the end of the block, also after an error.

    Begins with a pull. Does nothing for a folder that is no mirror, or None: another process of the run does this.
    """

    def __init__(self, folder: Path | None) -> None:
        url = None if folder is None else paths.url_of(folder)
        self._store = None if folder is None or url is None else Mirror(folder.absolute(), url)
        self._trainer = ""
        self._pool, self._is_due = ThreadPoolExecutor(1, "uploads"), threading.Event()
        self._error: UserError | None = None  # of the last push in the background that failed
        if self._store is not None:
            self._store.pull()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, failure: BaseException | None, *rest: object) -> None:
        try:
            if not isinstance(failure, SupersededError):
                self.finish()
        except UserError as error:
            if failure is None:
                raise
            print(f"warning: {error}", flush=True)

    def begin(self) -> None:
        """Name this process in the store as the trainer. Raises SupersededError if another process has just done so."""
        if self._store is not None:
            since = datetime.now(UTC).isoformat(" ", "milliseconds")
            self._trainer = f"process {os.getpid()} on {platform.node()}, since {since}"
            self._store.push(self._trainer, begin=True)

    def push_soon(self) -> None:
        """Store the current state in the background. Raises SupersededError if a push has found another trainer."""
        self._require_alone()
        if self._store is not None and not self._is_due.is_set():
            self._is_due.set()
            self._pool.submit(self._push, self._store)

    def _push(self, store: Mirror) -> None:
        self._is_due.clear()
        try:
            store.push(self._trainer)
        except UserError as error:
            if self._error is None and not isinstance(error, SupersededError):
                print(f"warning: {error} The training goes on; each checkpoint tries again.", flush=True)
            self._error = error

    def _require_alone(self) -> None:
        if isinstance(self._error, SupersededError):
            raise self._error

    def finish(self) -> None:
        """Store the final state. Raises UserError if that is not possible."""
        self._pool.shutdown(cancel_futures=True)
        self._require_alone()
        if self._store is not None:
            try:
                self._store.push(self._trainer)
            except SupersededError:
                raise
            except UserError as error:
                where = f"What it lacks is in {self._store.folder}: the same command stores it."
                raise UserError(f"{error} {where}") from error
