"""The trail of the batches that a run was trained on: the hash of each on disk, and the last ones in memory.

`batches.sha256` has one line for every update, in order: the hash (`batch.hash_batch`, 64 hex digits, in as many parts
as the stream has virtual shards) of its batch. All lines have one length, so that any of them is found, and the file
cut, in constant time. Two runs that saw the same data in the same order have the same file.

Where several processes read, each hashes the virtual shards that it reads, and the first one writes the lines.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from t5xpg.data.batch import Batch, hash_batch, hash_of_parts, hash_parts

LINE = 65  # bytes: the digits and a line end
UNKNOWN = "-" * (LINE - 1)  # in place of a hash that was lost
_RECENT = 2  # batches in memory: metrics are read one update late, so a bad one's batch is the last but one
_FLUSH_UPDATES = 100  # updates whose hashes go to the first process in one message


@dataclass(frozen=True)
class Shares:
    """The virtual shards that each process reads (`shards`), and the way in which the hashes of all come together.

    process: the number of this one. gather: sends its value to the first process, which gets those of all in order.
    """

    shards: Sequence[Sequence[int]]
    process: int
    gather: Callable[[bytes], list[bytes]]


class BatchTrail:
    """Writes the hashes of the batches of the updates that follow `step` into the file `path`.

    path: None where another process writes it. parts: virtual shards of a batch, see `batch.hash_batch`. shares: where
    several processes read; None for one process.
    """

    def __init__(self, path: Path | None, step: int, parts: int = 1, shares: Shares | None = None) -> None:
        self._step = step
        self._parts = parts
        self._shares = shares
        self._recent: deque[tuple[int, Batch]] = deque(maxlen=_RECENT)
        self._unwritten: list[list[str]] = []  # of several processes: the hashes of this one's shards
        self._file = None if path is None else self._open(path, step)

    def _open(self, path: Path, step: int) -> BinaryIO:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
        # The batches after the checkpoint are read again: their lines are cut off.
        size = min(os.fstat(file.fileno()).st_size, step * LINE) // LINE * LINE
        file.truncate(size)
        file.write(f"{UNKNOWN}\n".encode("ascii") * (step - size // LINE))
        file.flush()
        return file

    def add(self, batch: Batch) -> None:
        """Note the batch of the next update, or the rows of it that this process has."""
        self._step += 1
        self._recent.append((self._step, batch))
        if self._shares is None:
            self._write(hash_batch(batch, self._parts))
            return
        self._unwritten.append(hash_parts(batch, len(self._shares.shards[self._shares.process])))
        if len(self._unwritten) == _FLUSH_UPDATES:
            self.flush()

    def _write(self, digest: str) -> None:
        assert self._file is not None
        self._file.write(f"{digest}\n".encode("ascii"))
        self._file.flush()  # all of the line, or an error

    def flush(self) -> None:
        """Write the lines of all batches so far. All processes have to call it after the same batch."""
        count = len(self._unwritten)
        digests = bytes.fromhex("".join(digest for hashes in self._unwritten for digest in hashes))
        self._unwritten = []
        if not count or self._shares is None:
            return
        hashes: list[dict[int, str]] = [{} for _ in range(count)]  # of each batch, by shard
        gathered = self._shares.gather(digests)  # empty in all processes but the first
        for shards, sent_digests in zip(self._shares.shards, gathered, strict=False):
            remaining = iter(sent_digests.hex(" ", 32).split())
            for digest_of_shard in hashes:
                digest_of_shard |= {shard: next(remaining) for shard in shards}
        for digest_of_shard in hashes:
            if digest_of_shard:
                self._write(hash_of_parts([digest_of_shard[shard] for shard in range(self._parts)]))

    def batch_of(self, step: int) -> Batch:
        """The batch of one of the last two updates; KeyError for others."""
        return dict(self._recent)[step]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_trail(path: Path) -> list[str]:
    """The hashes of a run's batches, from update 1 on; without a last line that was cut off."""
    text = path.read_text(encoding="ascii")
    return text[: len(text) // LINE * LINE].splitlines()
