"""Folders in object stores (s3://, gs://, all that fsspec knows), each with a mirror on this machine (`paths.local`).

Programs work in the mirror: `pull` updates it from the store, `push` stores its changes. In the store:

    <folder>/<name>                    a file
    <folder>/<name>.<digest>.<suffix>  a file that has replaced one of that name
    <folder>/manifests/<number>.json   the state: {"files": {name: [object, size, sha256]}, "trainer", "push"}

A reader trusts only the last manifest. The objects that it names are never overwritten. A push writes the next manifest
last, and only if no manifest has its number yet. So an interruption leaves this state or the next, and of two writers
at once, the second adds its changes to those of the first. Later pushes remove objects that no manifest names.

`.t5xpg_store.json` in the mirror records the state that was last pulled or pushed. A folder without this record counts
as no mirror, so a whole mirror can be deleted. A single file deleted in a mirror is deleted in the store by a push.
"""

import contextlib
import functools
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

from t5xpg.base import digests, files, locks
from t5xpg.base.errors import UserError, first_line
from t5xpg.base.progress import Progress

_RECORD, _MANIFESTS = ".t5xpg_store.json", "manifests"
# Names that stay on this machine: hidden files, and checkpoints that are being written or removed, or are damaged.
_LOCAL = re.compile(r"\..*|\d+\.(unfinished|removed|orbax).*|damaged")
_IMMUTABLE = "checkpoints/"  # their files never change
_KEPT_MANIFESTS = 3  # so that none gets the number of one that was removed
_ORPHANED = timedelta(days=1)  # an older object that no manifest names is left from an interrupted push
_TRIES, _TRANSFERS = 5, 8


class SupersededError(UserError):
    """Another process has begun to train the run."""


@dataclass(frozen=True)
class _Manifest:
    """A state of the folder. number: 0 for an empty store. files: {name: [object, size, sha256]}. trainer: the process
    that last began to train in it. push: the id of the push that wrote the manifest."""

    number: int = 0
    files: dict[str, list[Any]] = field(default_factory=dict)
    trainer: str | None = None
    push: str = ""


@dataclass
class _Record:
    """The state of the store that the mirror had. files: {name: [sha256, size, mtime_ns]}, size and time of the file
    here. sent: the same, of a push that may have been interrupted. begun: its trainer, if it only named one."""

    number: int = 0
    files: dict[str, list[Any]] = field(default_factory=dict)
    trainer: str | None = None
    sent: dict[str, list[Any]] = field(default_factory=dict)
    begun: str | None = None

    def entry_of(self, name: str, sha256: str) -> list[Any] | None:
        """The entry of the file with these bytes; None if the mirror never had them."""
        entries = (self.files.get(name), self.sent.get(name))
        return next((entry for entry in entries if entry is not None and entry[0] == sha256), None)


class Mirror:
    """A folder of a store and its mirror. The methods raise UserError if the store cannot be reached."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        scheme = url.partition("://")[0]
        try:
            from fsspec.core import url_to_fs

            self._fs, self._root = url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            package = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}.get(scheme)
            command = f": .venv/bin/python -m pip install {package}" if package else "."
            raise UserError(f"{url} needs a package that is not installed ({error}){command}") from None
        except ValueError as error:
            raise UserError(f"{url}: {error}. Expected s3://…, gs://…, or another name that fsspec knows.") from None

    @contextlib.contextmanager
    def _store_errors(self, access: str, *passing: type[Exception]) -> Iterator[None]:
        """Turn errors of the store into UserError, but for those of `passing` classes. access: "read" or "written"."""
        try:
            yield
        except Exception as error:  # each library has its own
            if isinstance(error, (UserError, *passing)):
                raise
            raise UserError(f"{self.url} cannot be {access} ({type(error).__name__}: {first_line(error)}).") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_Record]:
        """Hold the lock of the mirror, against other processes of this machine; yields the record."""
        lock = self.folder.parent / f".{self.folder.name}.store.lock"
        with locks.hold(lock, doing=f"exchanging files with {self.url}", instead="", wait=Progress.print):
            files.remove_abandoned(self.folder)
            yield _Record(**files.json_object_if_any(self.folder / _RECORD))

    def _write_record(self, record: _Record) -> None:
        files.write_json(self.folder / _RECORD, vars(record))

    def newest(self) -> _Manifest:
        """The state of the store."""
        with self._store_errors("read"):
            for _ in range(_TRIES):
                try:
                    names = self._fs.ls(f"{self._root}/{_MANIFESTS}", detail=False)
                except FileNotFoundError:
                    names = []
                number = max((int(PurePosixPath(name).stem) for name in names if name.endswith(".json")), default=0)
                if number == 0:
                    break
                with contextlib.suppress(FileNotFoundError):  # later ones came meanwhile
                    manifest = _Manifest(number, **json.loads(self._fs.cat_file(self._manifest_path(number))))
                    if not all(digests.is_inside(name) for name in manifest.files):
                        raise ValueError("a name in its manifest leads out of the folder")
                    return manifest
        return _Manifest()

    def _manifest_path(self, number: int) -> str:
        return f"{self._root}/{_MANIFESTS}/{number:08d}.json"

    # --- to this machine ---

    def pull(self, name_filter: Callable[[str], bool] = lambda name: True) -> None:
        """Update the mirror from the store, only the files whose names `name_filter` accepts."""
        with self._locked() as record:
            for attempt in range(_TRIES):
                manifest = self.newest()
                if not manifest.number:
                    if record.number:
                        raise UserError(
                            f"{self.url} holds nothing any more, and {self.folder} is a copy of what it held. To start "
                            f"over, delete the copy; to store it again, delete {_RECORD} in it."
                        )
                    return
                try:
                    self._update(manifest, record, name_filter)
                    return
                except FileNotFoundError:  # another push has replaced it meanwhile
                    if attempt == _TRIES - 1:
                        raise UserError(f"{self.url} is damaged: a file that its manifest names is missing.") from None

    def _update(self, manifest: _Manifest, record: _Record, name_filter: Callable[[str], bool]) -> None:
        """Update the mirror to the manifest's state. Changes made here since the last exchange stay, unless the run was
        trained elsewhere in the meantime."""
        stamps = self._scan()
        is_reset = manifest.trainer not in (record.trainer, record.begun or record.trainer)
        is_reset = is_reset or not (record.number or record.begun)
        fetched_names: list[str] = []
        entries: dict[str, list[Any]] = {}
        for name, (_, size, sha256) in manifest.files.items():
            entry, stamp = record.entry_of(name, sha256), stamps.get(name)
            if entry is not None and (not digests.verifying() if entry[1:] == stamp else not is_reset):
                entries[name] = entry
                continue
            if stamp is not None and stamp[0] == size and files.sha256_of_file(self.folder / name) == sha256:
                entries[name] = [sha256, *stamp]
            elif name_filter(name):
                fetched_names.append(name)
            elif stamp is not None:  # an earlier one, which a push would put in the place of the store's
                self._remove(name)
        removed = stamps.keys() - manifest.files.keys()
        for name in removed if is_reset else [name for name in removed if name in record.files]:
            self._remove(name)
        if fetched_names:
            size = files.size_text(sum(manifest.files[name][1] for name in fetched_names))
            Progress.print(f"{self.url}: {len(fetched_names)} files, {size}, to {self.folder}")
        self.folder.mkdir(parents=True, exist_ok=True)
        with (
            self._store_errors("read", FileNotFoundError),
            self._scratch("pull") as scratch,
            ThreadPoolExecutor(_TRANSFERS) as pool,
        ):
            fetched = pool.map(lambda name: self._fetch(scratch, name, *manifest.files[name]), fetched_names)
            entries |= {name: [manifest.files[name][2], *new] for name, new in zip(fetched_names, fetched, strict=True)}
        if (new_record := _Record(manifest.number, entries, manifest.trainer)) != record:
            self._write_record(new_record)

    def _scratch(self, doing: str) -> tempfile.TemporaryDirectory[str]:
        """A folder in the mirror; if this process is killed, the next one removes it."""
        return tempfile.TemporaryDirectory(".tmp", files.temporary_prefix(doing), self.folder)

    def _fetch(self, scratch: str, name: str, source: str, size: int, sha256: str) -> list[int]:
        path, temporary = self.folder / name, Path(scratch, uuid.uuid4().hex)
        self._fs.get_file(f"{self._root}/{source}", str(temporary))
        if temporary.stat().st_size != size or files.sha256_of_file(temporary) != sha256:
            raise UserError(f"{self.url}/{source} is damaged: it is not what was stored (sha256 {sha256[:12]}…).")
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary, path)
        return _stamp(path)

    def _remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)
        for parent in PurePosixPath(name).parents[:-1]:
            with contextlib.suppress(OSError):  # it is not empty
                (self.folder / parent).rmdir()

    def _scan(self) -> dict[str, list[int]]:
        """[size, mtime_ns] of the files of the mirror by their names; folders in it that are mirrors are left out.

        All files are listed before their sizes are read, so that records are as new as the listed checkpoints.
        """

        def belongs(parent: str, name: str) -> bool:
            path = Path(parent, name)
            return not _LOCAL.fullmatch(name) and path.exists() and not (path / _RECORD).exists()

        def fail(error: OSError) -> None:
            raise error

        while self.folder.is_dir():
            with contextlib.suppress(FileNotFoundError):  # a checkpoint was removed just now
                paths: list[Path] = []
                for parent, folders, names in os.walk(self.folder, onerror=fail):
                    folders[:] = [name for name in folders if belongs(parent, name)]
                    paths += [Path(parent, name) for name in names if belongs(parent, name)]
                return {path.relative_to(self.folder).as_posix(): _stamp(path) for path in paths}
        return {}

    # --- to the store ---

    def push(self, trainer: str | None = None, *, begin: bool = False) -> None:
        """Store the changes made here. trainer: the process that trains the run. begin: only name it in the store."""
        with self._locked() as record, self._store_errors("written"), contextlib.ExitStack() as stack:
            sent_entries: dict[str, list[Any]] = {}  # by their names
            push_id = uuid.uuid4().hex
            for _ in range(_TRIES):
                stamps = {} if begin else self._scan()
                changed = [name for name, stamp in stamps.items() if record.files.get(name, [None])[1:] != stamp]
                if not begin and not changed and record.files.keys() <= stamps.keys():
                    return
                manifest = self.newest()
                if record.number and not manifest.number:
                    raise SupersededError(f"{self.url} was removed. What is here stays in {self.folder}.")
                if trainer is not None and manifest.trainer != record.trainer:
                    raise SupersededError(
                        f"{self.url} is trained by another process: {manifest.trainer}. This one stops. To train here "
                        "instead, stop the other one and type the same command again."
                    )
                try:
                    folder = self.folder if begin or trainer is None else stack.enter_context(self._copies(changed))
                except FileNotFoundError:  # removed since it was listed
                    continue
                removed = set() if begin else (record if record.number else manifest).files.keys() - stamps.keys()
                entries = {name: entry for name, entry in manifest.files.items() if name not in removed}
                object_names = {entry[0] for entry in manifest.files.values()}
                with ThreadPoolExecutor(_TRANSFERS) as pool:
                    send = functools.partial(self._send, folder, entries, object_names, sent_entries)
                    entries |= dict(zip(changed, pool.map(send, changed), strict=True))
                new_manifest = _Manifest(manifest.number + 1, entries, trainer or manifest.trainer, push_id)
                record.sent = {name: [entries[name][2], *stamps[name]] for name in changed}
                record.begun = trainer if begin else record.begun
                self._write_record(record)
                try:
                    self._write_manifest(new_manifest)
                except FileExistsError:  # another process was faster; or the answer to this one was lost
                    if self.newest().push != push_id:
                        continue
                kept = {name: entry for name, entry in record.files.items() if begin or name in stamps}
                self._write_record(_Record(new_manifest.number, kept | record.sent, trainer or record.trainer))
                with contextlib.suppress(Exception):  # the state is stored: a later push removes what this one leaves
                    self._sweep(manifest, new_manifest)
                return
            raise UserError(f"{self.url} cannot be written: others change it, or {self.folder}, at the same time.")

    @contextlib.contextmanager
    def _copies(self, names: Iterable[str]) -> Iterator[Path]:
        """A folder with copies of these files: the originals may grow or be removed while the copies are sent."""
        with self._scratch("push") as folder:
            for name in names:
                copy = Path(folder, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                if name.startswith(_IMMUTABLE):
                    with contextlib.suppress(OSError):  # a file system without such names
                        os.link(self.folder / name, copy)
                if not copy.exists():
                    shutil.copyfile(self.folder / name, copy)
            yield Path(folder)

    def _send(
        self,
        folder: Path,
        entries: Mapping[str, list[Any]],
        object_names: Container[str],
        sent_entries: dict[str, list[Any]],
        name: str,
    ) -> list[Any]:
        """Store a file unless the store has it; returns its manifest entry. entries, object_names: of the manifest.
        sent_entries: those that this push has added."""
        size, sha256 = (folder / name).stat().st_size, files.sha256_of_file(folder / name)
        stored_entry, sent_entry = entries.get(name), sent_entries.get(name)
        if sent_entry is not None and sent_entry[0] in object_names:
            sent_entry = None  # another program has stored a file under that name since
        for entry in (stored_entry, sent_entry):
            if entry is not None and entry[1:] == [size, sha256]:
                return entry
        path = PurePosixPath(name)
        target = str(path.with_name(f"{path.stem}.{sha256[:8]}{path.suffix}")) if name in object_names else name
        self._fs.put_file(str(folder / name), f"{self._root}/{target}")
        sent_entries[name] = [target, size, sha256]
        return sent_entries[name]

    def _write_manifest(self, manifest: _Manifest) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "manifest.json")
            files.write_json(file, {name: value for name, value in vars(manifest).items() if name != "number"})
            self._fs.put_file(str(file), self._manifest_path(manifest.number), mode="create")

    def _sweep(self, previous: _Manifest, manifest: _Manifest) -> None:
        """Remove objects that the new manifest does not name: those of the one before, and of interrupted pushes."""
        names = set(self._fs.find(self._root))
        manifest_starts = [name.find(f"/{_MANIFESTS}/", len(self._root) + 1) for name in names]
        inner_folders = tuple({name[: end + 1] for name, end in zip(names, manifest_starts, strict=True) if end >= 0})
        replaced = {f"{self._root}/{entry[0]}" for entry in previous.files.values()}
        replaced |= {self._manifest_path(manifest.number - _KEPT_MANIFESTS)}
        unnamed_objects = names - {f"{self._root}/{entry[0]}" for entry in manifest.files.values()}
        for name in unnamed_objects:
            is_own = not name.startswith((f"{self._root}/{_MANIFESTS}/", *inner_folders))
            if name in replaced or (is_own and datetime.now(UTC) - self._fs.modified(name) > _ORPHANED):
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(name)

    def remove(self) -> None:
        """Remove the whole folder in the store, its manifests first: without them it counts as empty."""
        with self._store_errors("written"), contextlib.suppress(FileNotFoundError):
            for number in sorted(self._fs.find(f"{self._root}/{_MANIFESTS}"), reverse=True):
                self._fs.rm_file(number)
            self._fs.rm(self._root, recursive=True)

    def names(self) -> list[str]:
        """The names of the folders in the store's folder."""
        with self._store_errors("read"), contextlib.suppress(FileNotFoundError):
            entries = self._fs.ls(self._root, detail=True)
            return [PurePosixPath(entry["name"]).name for entry in entries if entry["type"] == "directory"]
        return []


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
