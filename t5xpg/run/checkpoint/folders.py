"""The folders of a run's checkpoints: their names, their digests, and their removal.

    <directory>/<step>              a checkpoint
    <directory>/<step>/SHA256SUMS   "<sha256>  <file>" for every file in it, as sha256sum writes and checks it, under a
                                    first line with the digest of those lines
    <directory>/damaged/<step>      a damaged one: moved aside, never used, never deleted
    <directory>/<step>.unfinished   one that is being written; <step>.removed: one that is being deleted

The digests are written before the folder takes its name, so no checkpoint is ever without them. Each process
hashes a folder once, before it uses it: damage such as a flipped bit on a disk changes neither size nor time.
"""

import contextlib
import errno
import json
import math
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError, first_line
from t5xpg.base.files import json_object_if_any, remove, sha256_of_file, write_text

DIGESTS = "SHA256SUMS"
RESUME_ONLY = "passing"  # in the meta of a checkpoint that is only to continue from
_SEAL = "# sha256 of the lines below: "
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_LEFT_BEHIND = re.compile(r"\d+\.(unfinished|removed|orbax-checkpoint-tmp).*")
_SHOWN_PROBLEMS = 5
_LATE_WRITES = 5.0  # seconds for which files that the threads of a failed write still make are removed

_Stats = dict[str, tuple[int, int]]  # size and mtime_ns of every file in a folder
_whole_folders: dict[Path, _Stats] = {}  # the folders that this process has checked


def saved_steps(directory: Path) -> list[int]:
    """The steps that have a folder in the directory of a run's checkpoints, ascending."""
    names = [path.name for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and str(int(name)) == name)


def lasting_steps(directory: Path) -> list[int]:
    """The `saved_steps` of an unbroken run: without those that are only to continue from (RESUME_ONLY)."""
    metas = {step: json_object_if_any(directory / str(step) / "meta" / "metadata") for step in saved_steps(directory)}
    return [step for step, meta in metas.items() if not meta.get(RESUME_ONLY)]


def best_step(directory: Path, metric: str, mode: str) -> int | None:
    """The step of `lasting_steps` with the lowest ("min") or highest ("max") metric, the first of equals.

    NaN does not count. None if no checkpoint has the metric.
    """
    cost_by_step: dict[int, float] = {}
    for step in lasting_steps(directory):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # not measured then, or damaged
            value = float(json.loads((directory / str(step) / "metrics" / "metrics").read_bytes())[metric])
            if not math.isnan(value):
                cost_by_step[step] = value if mode == "min" else -value
    return min(cost_by_step, key=lambda step: cost_by_step[step], default=None)


def last_meta(directory: Path) -> dict[str, Any]:
    """The meta of the last checkpoint whose meta can be read; empty where there is none."""
    metas = (json_object_if_any(directory / str(step) / "meta" / "metadata") for step in saved_steps(directory)[::-1])
    return next(filter(None, metas), {})


class CheckpointFolders:
    """The checkpoint folders in `directory`. Errors of the file system are raised as they are."""

    def __init__(self, directory: Path, *, read_only: bool) -> None:
        self._directory = directory
        self._read_only = read_only
        if not read_only:
            directory.mkdir(parents=True, exist_ok=True)
            for path in sorted(directory.iterdir()):
                if _LEFT_BEHIND.fullmatch(path.name):
                    _remove(path)

    def path(self, step: int) -> Path:
        """The folder of the whole checkpoint of `step`."""
        return self._directory / str(step)

    def unfinished(self, step: int) -> Path:
        """The folder of the checkpoint of `step` while it is being written."""
        return self._directory / f"{step}.unfinished"

    def finish(self, step: int) -> None:
        """Write the digests of the folder `unfinished(step)`, and then give it its final name."""
        _seal(self.unfinished(step))
        os.rename(self.unfinished(step), self.path(step))
        _sync(self._directory)
        _whole_folders[self.path(step)] = _stats(self.path(step))

    def discard(self, step: int) -> None:
        """Remove the unfinished folder of `step` after an error, while threads may still write parts of it."""
        end, clean_passes = time.monotonic() + _LATE_WRITES, 0
        while clean_passes < 3 and time.monotonic() < end:
            leftovers = [path for path in self._directory.glob(f"{step}.*") if _LEFT_BEHIND.fullmatch(path.name)]
            for path in leftovers:
                shutil.rmtree(path, ignore_errors=True)
            clean_passes = 0 if leftovers else clean_passes + 1
            time.sleep(0.05)

    def keep(self, steps: Collection[int | None]) -> None:
        """Remove all other checkpoints. One that cannot be removed stays, and a line says so."""
        for step in saved_steps(self._directory):
            if step in steps:
                continue
            removed = self._directory / f"{step}.removed"
            try:
                os.rename(self.path(step), removed)  # half a checkpoint has no checkpoint's name
            except OSError as error:
                _warn(f"The checkpoint {self.path(step)} is superseded but cannot be removed: {error.strerror}.")
                continue
            _whole_folders.pop(self.path(step), None)
            _remove(removed)

    def latest(self) -> int | None:
        """The last step whose checkpoint is whole; None where there is none at all.

        Damaged ones after it are moved aside (with read_only, skipped), and a line on stderr says so. Raises UserError
        where there are checkpoints and none is whole; then none is moved.
        """
        damaged: dict[int, str] = {}
        whole = None
        for step in reversed(saved_steps(self._directory)):
            damage = self.damage(step)
            if damage is None:
                whole = step
                break
            if self.path(step).exists():  # else the run that is being read removed it meanwhile
                damaged[step] = damage
        if damaged and whole is None:
            raise UserError(
                f"None of the checkpoints in {self._directory} is whole:\n"
                + "\n".join(f"  {step}: {damage}" for step, damage in damaged.items())
                + "\nPut one back from a copy. To start over instead, name another run directory (RUN=…), or type: "
                f"rm -r {shlex.quote(str(self._directory))}"
            )
        for step, damage in damaged.items():
            moved = "" if self._read_only else f" It was moved to {self._move_aside(step)}."
            _warn(f"The checkpoint of step {step} is damaged: {damage}.{moved} Going on from step {whole}.")
        return whole

    def damage(self, step: int) -> str | None:
        """The damage of the checkpoint of `step`, such as "params/_METADATA is missing"; None if it is whole."""
        folder = self.path(step)
        try:
            stats = _stats(folder)
            if _whole_folders.get(folder) == stats:
                return None
            problems = _problems(folder, stats) if DIGESTS in stats else [f"{DIGESTS} is missing"]
        except PermissionError:
            raise
        except Exception as error:  # whatever the reading of broken files raises
            problems = [f"it cannot be read ({first_line(error)})"]
        if not problems:
            _whole_folders[folder] = stats
            return None
        others = len(problems) - _SHOWN_PROBLEMS
        return "; ".join(problems[:_SHOWN_PROBLEMS]) + (f"; and {others} files more" if others > 0 else "")

    def _move_aside(self, step: int) -> Path:
        damaged = self._directory / "damaged"
        damaged.mkdir(exist_ok=True)
        target, count = damaged / str(step), 1
        while target.exists():
            count += 1
            target = damaged / f"{step}-{count}"
        os.rename(self.path(step), target)
        return target


def _seal(folder: Path) -> None:
    """Write the digests of all files in `folder`."""
    lines = "".join(f"{_digest(folder / name)}  {name}\n" for name in sorted(_stats(folder)))
    write_text(folder / DIGESTS, f"{_SEAL}{sha256(lines.encode()).hexdigest()}\n{lines}")


def _problems(folder: Path, stats: _Stats) -> list[str]:
    """A line for each difference between the files of `folder` and its digests."""
    seal, _, lines = (folder / DIGESTS).read_bytes().partition(b"\n")
    if seal != f"{_SEAL}{sha256(lines).hexdigest()}".encode():
        return [f"{DIGESTS} is not as it was written"]
    expected = {match[2]: match[1] for line in lines.decode().splitlines() if (match := _LINE.fullmatch(line))}
    names = stats.keys() - {DIGESTS}
    common = sorted(expected.keys() & names)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = dict(zip(common, pool.map(lambda name: _digest(folder / name), common), strict=True))
    return [
        *(f"{name} is missing" for name in sorted(expected.keys() - names)),
        *(f"{name} was not written with it" for name in sorted(names - expected.keys())),
        *(f"{name} is not as it was written" for name in common if digests[name] != expected[name]),
    ]


def _digest(path: Path) -> str:
    """The SHA-256 of a file in hex. For a file that the disk cannot read any more, a text that equals no digest."""
    try:
        return sha256_of_file(path)
    except OSError as error:
        if error.errno == errno.EIO:
            return "unreadable"
        raise


def _stats(folder: Path) -> _Stats:
    """The size and mtime_ns of all files below `folder`, by their names in it."""
    stats: _Stats = {}
    for parent, _, names in os.walk(folder, onerror=_raise):
        for name in names:
            path = Path(parent, name)
            stat = path.lstat()
            stats[path.relative_to(folder).as_posix()] = (stat.st_size, stat.st_mtime_ns)
    return stats


def _raise(error: OSError) -> None:
    raise error


def _remove(path: Path) -> None:
    """Remove a folder or file that is not needed any more. If that fails, a line on stderr says so."""
    try:
        remove(path)
    except OSError as error:
        _warn(f"{path} is of no use any more but cannot be removed: {error.strerror}.")


def _sync(directory: Path) -> None:
    """Write the file names in `directory` to the disk (fsync), if the file system supports that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
