"""Folders in object stores (s3://, gs://, whatever fsspec has), each with a mirror on this machine (`paths.local`).

Programs work in the mirror: `pull` gives it what the store has, `push` stores what has changed in it. In the store:

    <folder>/<name>                    a file
    <folder>/<name>.<digest>.<suffix>  what has replaced a file of that name
    <folder>/manifests/<number>.json   the state: {"files": {name: [object, size, sha256]}, "trainer", "push"}

A reader trusts only the last manifest. The objects that it names are never overwritten. A push writes the next manifest
last, and only if none has its number yet: so an interruption leaves this state or the next, and of two writers at once
the second takes in what the first one wrote. Later pushes remove the objects that no manifest names.

`.t5xpg_store.json` in the mirror holds what was last pulled or pushed. A folder without this file counts as no mirror,
so a whole mirror can be deleted; but a file that is deleted in a mirror is deleted in the store by the next push.
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
# What belongs to this machine: hidden files, and checkpoints that are being written or removed, or are damaged.
_LOCAL = re.compile(r"\..*|\d+\.(unfinished|removed|orbax).*|damaged")
_FROZEN = "checkpoints/"  # their files never change
_KEPT_MANIFESTS = 3  # so that none gets the number of one that was removed
_ORPHANED = timedelta(days=1)  # an object that no manifest names for so long is left from an interrupted push
_TRIES, _TRANSFERS = 5, 8


class SupersededError(UserError):
    """Another process has begun to train the run."""


@dataclass(frozen=True)
class _Manifest:
    """A state of the folder. number: 0 where nothing is stored. trainer: the process that last began to train in it."""

    number: int = 0
    files: dict[str, list[Any]] = field(default_factory=dict)
    trainer: str | None = None
    push: str = ""


@dataclass
class _Record:
    """What the mirror had of the store. files: {name: [sha256, size, mtime_ns]}, with size and time of the file here.
    sent: the same, of a push that may have been interrupted; begun: its trainer, where it only named one."""

    number: int = 0
    files: dict[str, list[Any]] = field(default_factory=dict)
    trainer: str | None = None
    sent: dict[str, list[Any]] = field(default_factory=dict)
    begun: str | None = None

    def known(self, name: str, sha256: str) -> list[Any] | None:
        """The entry of the file from when the mirror had these bytes of it; None if it never had them."""
        had = (self.files.get(name), self.sent.get(name))
        return next((one for one in had if one is not None and one[0] == sha256), None)


class Mirror:
    """A folder of a store. Its methods raise UserError where the store cannot be reached."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        scheme = url.partition("://")[0]
        try:
            from fsspec.core import url_to_fs

            self._fs, self._root = url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            package = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}.get(scheme)
            typed = f": .venv/bin/python -m pip install {package}" if package else "."
            raise UserError(f"{url} needs a package that is not installed ({error}){typed}") from None
        except ValueError as error:
            raise UserError(f"{url}: {error}. Expected s3://…, gs://…, or another name that fsspec knows.") from None

    @contextlib.contextmanager
    def _reached(self, doing: str, *passing: type[Exception]) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each library has its own
            if isinstance(error, (UserError, *passing)):
                raise
            raise UserError(f"{self.url} cannot be {doing} ({type(error).__name__}: {first_line(error)}).") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_Record]:
        """The record, for one process of this machine at a time."""
        lock = self.folder.parent / f".{self.folder.name}.store.lock"
        with locks.hold(lock, doing=f"exchanging files with {self.url}", instead="", wait=Progress.print):
            files.remove_abandoned(self.folder)
            yield _Record(**files.json_object_if_any(self.folder / _RECORD))

    def _keep(self, record: _Record) -> None:
        files.write_json(self.folder / _RECORD, vars(record))

    def newest(self) -> _Manifest:
        """The state of the store."""
        with self._reached("read"):
            for _ in range(_TRIES):
                try:
                    names = self._fs.ls(f"{self._root}/{_MANIFESTS}", detail=False)
                except FileNotFoundError:
                    names = []
                number = max((int(PurePosixPath(name).stem) for name in names if name.endswith(".json")), default=0)
                if number == 0:
                    break
                with contextlib.suppress(FileNotFoundError):  # later ones came meanwhile
                    manifest = _Manifest(number, **json.loads(self._fs.cat_file(self._manifest(number))))
                    if not all(digests.is_inside(name) for name in manifest.files):
                        raise ValueError("a name in its manifest leads out of the folder")
                    return manifest
        return _Manifest()

    def _manifest(self, number: int) -> str:
        return f"{self._root}/{_MANIFESTS}/{number:08d}.json"

    # --- to this machine ---

    def pull(self, wanted: Callable[[str], bool] = lambda name: True) -> None:
        """Update the mirror from the store, for the files whose names are wanted."""
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
                    self._take(manifest, record, wanted)
                    return
                except FileNotFoundError:  # another push has replaced it meanwhile
                    if attempt == _TRIES - 1:
                        raise UserError(f"{self.url} is damaged: a file that its manifest names is missing.") from None

    def _take(self, manifest: _Manifest, record: _Record, wanted: Callable[[str], bool]) -> None:
        """Bring the mirror to the state of the manifest. Changes made here since the last exchange stay, unless the run
        was trained elsewhere in the meantime."""
        here = self._scan()
        reset = manifest.trainer not in (record.trainer, record.begun or record.trainer)
        reset = reset or not (record.number or record.begun)
        fetched: list[str] = []
        known: dict[str, list[Any]] = {}
        for name, (_, size, sha256) in manifest.files.items():
            before, now = record.known(name, sha256), here.get(name)
            if before is not None and (not digests.verifying() if before[1:] == now else not reset):
                known[name] = before
                continue
            if now is not None and now[0] == size and files.sha256_of_file(self.folder / name) == sha256:
                known[name] = [sha256, *now]
            elif wanted(name):
                fetched.append(name)
            elif now is not None:  # an earlier one, which a push would put in the place of the store's
                self._remove(name)
        gone = here.keys() - manifest.files.keys()
        for name in gone if reset else [name for name in gone if name in record.files]:
            self._remove(name)
        if fetched:
            size = files.size_text(sum(manifest.files[name][1] for name in fetched))
            Progress.print(f"{self.url}: {len(fetched)} files, {size}, to {self.folder}")
        self.folder.mkdir(parents=True, exist_ok=True)
        with (
            self._reached("read", FileNotFoundError),
            self._scratch("pull") as scratch,
            ThreadPoolExecutor(_TRANSFERS) as pool,
        ):
            marks = pool.map(lambda name: self._fetch(scratch, name, *manifest.files[name]), fetched)
            known |= {name: [manifest.files[name][2], *mark] for name, mark in zip(fetched, marks, strict=True)}
        if (found := _Record(manifest.number, known, manifest.trainer)) != record:
            self._keep(found)

    def _scratch(self, doing: str) -> tempfile.TemporaryDirectory[str]:
        """A folder in the mirror; if this process is killed, the next one removes it."""
        return tempfile.TemporaryDirectory(".tmp", files.temporary_prefix(doing), self.folder)

    def _fetch(self, scratch: str, name: str, stored: str, size: int, sha256: str) -> list[int]:
        path, fetched = self.folder / name, Path(scratch, uuid.uuid4().hex)
        self._fs.get_file(f"{self._root}/{stored}", str(fetched))
        if fetched.stat().st_size != size or files.sha256_of_file(fetched) != sha256:
            raise UserError(f"{self.url}/{stored} is damaged: it is not what was stored (sha256 {sha256[:12]}…).")
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(fetched, path)
        return _marks(path)

    def _remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)
        for parent in PurePosixPath(name).parents[:-1]:
            with contextlib.suppress(OSError):  # it is not empty
                (self.folder / parent).rmdir()

    def _scan(self) -> dict[str, list[int]]:
        """[size, mtime_ns] of the files of the mirror by their names; folders in it that are mirrors are left out.

        All files are listed before any is looked at, so that records reach as far as the checkpoints that are listed.
        """

        def inside(parent: str, name: str) -> bool:
            path = Path(parent, name)
            return not _LOCAL.fullmatch(name) and path.exists() and not (path / _RECORD).exists()

        def fail(error: OSError) -> None:
            raise error

        while self.folder.is_dir():
            with contextlib.suppress(FileNotFoundError):  # a checkpoint was removed just now
                listed: list[Path] = []
                for parent, folders, names in os.walk(self.folder, onerror=fail):
                    folders[:] = [name for name in folders if inside(parent, name)]
                    listed += [Path(parent, name) for name in names if inside(parent, name)]
                return {path.relative_to(self.folder).as_posix(): _marks(path) for path in listed}
        return {}

    # --- to the store ---

    def push(self, trainer: str | None = None, *, begin: bool = False) -> None:
        """Store what was changed here. trainer: the process that trains the run. begin: only name it in the store."""
        with self._locked() as record, self._reached("written"), contextlib.ExitStack() as stack:
            sent: dict[str, list[Any]] = {}  # by their names
            own = uuid.uuid4().hex
            for _ in range(_TRIES):
                here = {} if begin else self._scan()
                changed = [name for name, mark in here.items() if record.files.get(name, [None])[1:] != mark]
                if not begin and not changed and record.files.keys() <= here.keys():
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
                    frozen = self.folder if begin or trainer is None else stack.enter_context(self._frozen(changed))
                except FileNotFoundError:  # removed since it was listed
                    continue
                gone = set() if begin else (record if record.number else manifest).files.keys() - here.keys()
                stored = {name: one for name, one in manifest.files.items() if name not in gone}
                taken = {one[0] for one in manifest.files.values()}
                with ThreadPoolExecutor(_TRANSFERS) as pool:
                    send = functools.partial(self._send, frozen, stored, taken, sent)
                    stored |= dict(zip(changed, pool.map(send, changed), strict=True))
                following = _Manifest(manifest.number + 1, stored, trainer or manifest.trainer, own)
                record.sent = {name: [stored[name][2], *here[name]] for name in changed}
                record.begun = trainer if begin else record.begun
                self._keep(record)
                try:
                    self._write(following)
                except FileExistsError:  # another process was faster; or the answer to this one was lost
                    if self.newest().push != own:
                        continue
                known = {name: one for name, one in record.files.items() if begin or name in here}
                self._keep(_Record(following.number, known | record.sent, trainer or record.trainer))
                with contextlib.suppress(Exception):  # the state is stored: a later push removes what this one leaves
                    self._sweep(manifest, following)
                return
            raise UserError(f"{self.url} cannot be written: others change it, or {self.folder}, at the same time.")

    @contextlib.contextmanager
    def _frozen(self, names: Iterable[str]) -> Iterator[Path]:
        """A folder with these files as they are now: the originals may grow or be removed while these are sent."""
        with self._scratch("push") as folder:
            for name in names:
                copy = Path(folder, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                if name.startswith(_FROZEN):
                    with contextlib.suppress(OSError):  # a file system without such names
                        os.link(self.folder / name, copy)
                if not copy.exists():
                    shutil.copyfile(self.folder / name, copy)
            yield Path(folder)

    def _send(
        self,
        folder: Path,
        stored: Mapping[str, list[Any]],
        taken: Container[str],
        sent: dict[str, list[Any]],
        name: str,
    ) -> list[Any]:
        """Store a file unless that is done; returns its manifest entry. taken: the objects that a manifest names."""
        size, sha256 = (folder / name).stat().st_size, files.sha256_of_file(folder / name)
        before, sent_before = stored.get(name), sent.get(name)
        if sent_before is not None and sent_before[0] in taken:
            sent_before = None  # another program has stored a file under that name since
        for known in (before, sent_before):
            if known is not None and known[1:] == [size, sha256]:
                return known
        pure = PurePosixPath(name)
        target = str(pure.with_name(f"{pure.stem}.{sha256[:8]}{pure.suffix}")) if name in taken else name
        self._fs.put_file(str(folder / name), f"{self._root}/{target}")
        sent[name] = [target, size, sha256]
        return sent[name]

    def _write(self, manifest: _Manifest) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "manifest.json")
            files.write_json(file, {name: value for name, value in vars(manifest).items() if name != "number"})
            self._fs.put_file(str(file), self._manifest(manifest.number), mode="create")

    def _sweep(self, before: _Manifest, now: _Manifest) -> None:
        """Remove what the new manifest does not name: objects of the one before, and those of interrupted pushes."""
        found = set(self._fs.find(self._root))
        ends = [name.find(f"/{_MANIFESTS}/", len(self._root) + 1) for name in found]
        others = tuple({name[: end + 1] for name, end in zip(found, ends, strict=True) if end >= 0})
        dropped = {f"{self._root}/{one[0]}" for one in before.files.values()}
        dropped |= {self._manifest(now.number - _KEPT_MANIFESTS)}
        unnamed = found - {f"{self._root}/{one[0]}" for one in now.files.values()}
        for name in unnamed:
            ours = not name.startswith((f"{self._root}/{_MANIFESTS}/", *others))
            if name in dropped or (ours and datetime.now(UTC) - self._fs.modified(name) > _ORPHANED):
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(name)

    def remove(self) -> None:
        """Remove all of the folder, its manifests first: without them it holds nothing."""
        with self._reached("written"), contextlib.suppress(FileNotFoundError):
            for number in sorted(self._fs.find(f"{self._root}/{_MANIFESTS}"), reverse=True):
                self._fs.rm_file(number)
            self._fs.rm(self._root, recursive=True)

    def names(self) -> list[str]:
        """The names of the folders in this one."""
        with self._reached("read"), contextlib.suppress(FileNotFoundError):
            listed = self._fs.ls(self._root, detail=True)
            return [PurePosixPath(one["name"]).name for one in listed if one["type"] == "directory"]
        return []


def _marks(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
