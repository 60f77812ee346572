"""The files that a stream reads: their state when it was opened, and whether they have changed. Imports TensorFlow.

tf.data says little when a file changes under it: one that is cut short looks like the end of an epoch, one that is
overwritten gives other text, and a deleted one can still be read. So size, time and inode are checked now and then, at
every end and error, and whenever a position is saved: all data read before it came from unchanged files. A saved
position holds names, sizes and digests of the files, and is not restored over other files.
"""

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.base.paths import data_directory
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.tasks.providers import Provider, reads_cache, source_of, tasks_of
from t5xpg.data.tasks.sources import Stat, stat_of
from t5xpg.data.tasks.table import ROWS
from t5xpg.data.tasks.task_names import cache_command
from t5xpg.data.text.manifest import find_manifests, read_manifest

_PERIOD = 1.0  # seconds at least between two checks in passing
_PAUSES = 50  # and at least this many times the duration of a check
# Bytes that are read to tell the files of a stream from others. In larger files, only evenly spread blocks are
# digested: full verification is left to exports and caches, which keep records of their digests.
_DIGESTED = 64 << 20
_BLOCK = 64 << 10
_MAX_SHOWN = 5  # files that one message names


@dataclass(frozen=True)
class _File:
    """A file of a task. A source may also list names that are not files: these are not checked."""

    task: str
    path: str
    cached: bool
    stat: Stat | None = None
    digest: str = ""


class SourceFiles:
    """The files that `provider` reads for the split of `config`, with their present state."""

    def __init__(self, provider: Provider, config: DatasetConfig) -> None:
        self._config = config
        listed = [
            _File(task.name, str(path), reads_cache(task, config))
            for task in tasks_of(provider)
            if config.split in task.splits
            for path in source_of(task, config).list_shards(config.split)
        ]
        self._share = _DIGESTED // max(1, len(listed))  # bytes of one file that are digested
        self._files = [
            dataclasses.replace(file, stat=stat, digest=_digest(file.path, stat.size, self._share)) if stat else file
            for file, stat in ((file, stat_of(file.path)) for file in listed)
        ]
        # names in a saved position are relative to these: it must not depend on where the data lies
        self._folders: dict[str, str] = {}
        for task in dict.fromkeys(file.task for file in listed):
            # characters, then up to a slash: commonpath would make gs:/ of gs://
            folders = [os.path.dirname(file.path) + "/" for file in listed if file.task == task]
            self._folders[task] = os.path.commonprefix(folders).rpartition("/")[0] + "/"  # noqa: RUF071
        self._next_check = time.monotonic() + _PERIOD

    def names_and_sizes(self) -> str:
        """The number of files, and a digest of their names and sizes."""
        files = [[os.path.basename(file.path), file.stat.size if file.stat else -1] for file in self._files]
        return f"{len(files)} files, {hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]}"

    def check(self) -> None:
        """Raise UserError, naming the files, if some have changed since the stream was opened."""
        began = time.monotonic()
        changes = [(file, change) for n, file in enumerate(self._files) if (change := self._change(n, file))]
        ended = time.monotonic()
        self._next_check = ended + max(_PERIOD, _PAUSES * (ended - began))
        if changes:
            self._raise_error("The data has changed while it was being read", changes)

    def check_in_passing(self) -> None:
        """`check`, unless the last one was a moment ago."""
        if time.monotonic() >= self._next_check:
            self.check()

    def find_damage(self, error: Exception) -> None:
        """Raise UserError with the name of the file whose records are damaged, if `error` came from such a file."""
        if not isinstance(error, tf.errors.DataLossError):
            return
        for file in self._files:
            number = 0
            try:
                for _ in tf.data.TFRecordDataset(file.path) if file.cached else ():
                    number += 1
            except tf.errors.OpError:
                self._raise_error("The data is damaged", [(file, f"cannot be read after {number:,} examples")])

    def to_array(self) -> np.ndarray:
        """The description of the files for a saved position: JSON as uint8."""
        entries = [[*self._key(file), file.stat.size, file.digest] for file in self._files if file.stat]
        return np.frombuffer(json.dumps(entries).encode("utf-8"), np.uint8)

    def compare(self, saved: np.ndarray) -> None:
        """Raise UserError, naming the files, if they differ from those of a saved position, described by `to_array`."""
        before = {(task, name): (size, digest) for task, name, size, digest in json.loads(saved.tobytes())}
        now = {self._key(file): file for file in self._files if file.stat}
        changes: list[tuple[_File, str]] = []
        for key, (size, _) in before.items():
            if key not in now:  # shown in the folder of its task's other files, if there are any
                task, name = key
                cached = any(file.cached for file in self._files if file.task == task)
                missing_file = _File(task, self._folders.get(task, f"{task}: ") + name, cached)
                changes.append((missing_file, "is not there any more"))
            elif (stat := now[key].stat) and stat.size != size:
                changes.append((now[key], f"has {stat.size:,} bytes and had {size:,}"))
        changes += [(file, "was not there then") for key, file in now.items() if key not in before]
        if not changes:  # as many files: of each, the same part was digested
            change = "holds other data, of the same size"
            changes = [(now[key], change) for key, (_, digest) in before.items() if now[key].digest != digest]
        if changes:
            self._raise_error("The data has changed since the position was saved", changes)

    def _change(self, number: int, file: _File) -> str | None:
        """The change of a file, as the end of a sentence; None without a change."""
        if file.stat is None:
            return None
        stat = stat_of(file.path)
        if stat is None:
            return "is not there any more"
        if stat.size != file.stat.size:
            return f"has {stat.size:,} bytes and had {file.stat.size:,}"
        if stat.inode == file.stat.inode:
            if stat.modified == file.stat.modified:
                return None
            # it may have been read while it was written
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stat.modified / 1e9))
            return f"was written to (at {when})"
        # Another file in its place: the same data exported again, or an effect of some network file systems.
        known_whole = _is_whole(stat.size, self._share) or stat.modified == file.stat.modified
        if not known_whole or _digest(file.path, stat.size, self._share) != file.digest:
            return "was replaced by another file of the same size"
        self._files[number] = dataclasses.replace(file, stat=stat)
        return None

    def _key(self, file: _File) -> tuple[str, str]:
        """The identity of a file, wherever the data lies: its task, and its name in the task's folder."""
        return file.task, file.path.removeprefix(self._folders[file.task])

    def _raise_error(self, what: str, changes: Sequence[tuple[_File, str]]) -> None:
        phrases = [f"{file.path} {change}" for file, change in changes[:_MAX_SHOWN]]
        if len(changes) > _MAX_SHOWN:
            phrases.append(f"{len(changes) - _MAX_SHOWN} more files differ")
        commands, exports = set(), find_manifests(data_directory())
        for file, _ in changes:
            if file.cached:
                commands.add(cache_command(file.task, self._config.module_import, force=True))
            elif (row := ROWS.get(file.task)) is not None and row.dataset in exports:
                commands.add(read_manifest(exports[row.dataset]).command(force=True))
        alternative = f", or make the same again ({', '.join(sorted(commands))})" if commands else ""
        raise UserError(
            f"{what}: {'; '.join(phrases)}. Put back what was there{alternative}, and give the command once more."
        )


def _is_whole(size: int, limit: int) -> bool:
    return size <= max(3 * _BLOCK, limit)


def _digest(path: str, size: int, limit: int) -> str:
    """SHA-256 of a file, or of blocks of it of about `limit` bytes in all where it is larger."""
    count = max(3, limit // _BLOCK)
    whole = _is_whole(size, limit)
    starts = [0] if whole else [round(i * (size - _BLOCK) / (count - 1)) for i in range(count)]
    length = size if whole else _BLOCK
    digest = hashlib.sha256(f"{size} {length}\n".encode())
    with tf.io.gfile.GFile(path, "rb") as file:
        for start in starts:
            file.seek(start)
            digest.update(file.read(length))
    return digest.hexdigest()
