"""What a run was fed: the hash of every batch on disk, and the last batches themselves in memory.

`batches.sha256` has one line for every update, in order: the hash (`batch.hash_batch`, 64 hex digits, in as many parts
as the stream has virtual shards) of its batch. All lines have one length, so that any of them is found, and the file
cut, in constant time. Two runs that saw the same data in the same order have the same file.

Where several processes read, each hashes the virtual shards that it reads, and the first one writes the lines.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path

from t5xpg.base import phases
from t5xpg.data.batch import Batch, hash_batch, hash_of_parts, hash_parts

LINE = 65  # bytes: the digits and a line end
UNKNOWN = "-" * (LINE - 1)  # for updates before the file was kept
_KEPT = 2  # metrics are read one update late: the batch of a bad one is the last but one
_TOGETHER = 100  # updates whose hashes go to the first process at once

Gather = Callable[[bytes], list[bytes]]  # the values of all processes in order; nothing on all but the first


class BatchTrail(Iterator[Batch]):
    """Passes batches on to the updates that follow `step`, and keeps the trail in the file `path`.

    path: None where another process keeps it. parts: of a batch, see `batch.hash_batch`.
    """

    def __init__(self, batches: Iterator[Batch], path: Path | None, step: int, parts: int = 1) -> None:
        self._batches = batches
        self._step = step
        self._parts = parts
        self._recent: deque[tuple[int, Batch]] = deque(maxlen=_KEPT)
        self._file = None if path is None else self._open(path, step)

    def _open(self, path: Path, step: int) -> FileIO:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab", buffering=0)
        # What an earlier process was fed after the checkpoint is fed again.
        size = min(os.fstat(file.fileno()).st_size, step * LINE) // LINE * LINE
        file.truncate(size)
        file.write(f"{UNKNOWN}\n".encode("ascii") * (step - size // LINE))
        return file

    def __next__(self) -> Batch:
        """The batch of the next update."""
        phases.begin("step", self._step + 1)
        batch = next(self._batches)
        self._step += 1
        self._recent.append((self._step, batch))
        self._note(batch)
        return batch

    def _note(self, batch: Batch) -> None:
        self._write(hash_batch(batch, self._parts))

    def _write(self, digest: str) -> None:
        assert self._file is not None
        self._file.write(f"{digest}\n".encode("ascii"))

    def flush(self) -> None:
        """Have the lines of all batches so far in the file. To be called after the same batch in all processes."""

    def batch_of(self, step: int) -> Batch | None:
        """The batch of one of the last updates; None for others."""
        return next((batch for at, batch in self._recent if at == step), None)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class SharedTrail(BatchTrail):
    """The trail of batches of which each process has the rows of some virtual shards.

    owned: those of every process, of `parts` altogether; process: the number of this one. gather: takes what this
    process says to the first one. That one keeps the file.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        path: Path | None,
        step: int,
        parts: int,
        *,
        owned: Sequence[Sequence[int]],
        process: int,
        gather: Gather,
    ) -> None:
        super().__init__(batches, path, step, parts)
        self._owned, self._process, self._gather = owned, process, gather
        self._noted: list[list[str]] = []

    def _note(self, batch: Batch) -> None:
        self._noted.append(hash_parts(batch, len(self._owned[self._process])))
        if len(self._noted) == _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """See `BatchTrail.flush`."""
        count, own = len(self._noted), bytes.fromhex("".join(digest for noted in self._noted for digest in noted))
        self._noted = []
        if not count:
            return
        hashes: list[dict[int, str]] = [{} for _ in range(count)]  # of each batch, by shard
        for shards, said in zip(self._owned, self._gather(own), strict=False):  # nothing is said to other processes
            digests = iter(said.hex(" ", 32).split())
            for of_shard in hashes:
                of_shard |= {shard: next(digests) for shard in shards}
        for of_shard in hashes:
            if of_shard:
                self._write(hash_of_parts([of_shard[shard] for shard in range(self._parts)]))


def read_trail(path: Path) -> list[str]:
    """The hashes of a run's batches, from update 1 on; without a last line that was cut off."""
    text = path.read_text(encoding="ascii")
    return text[: len(text) // LINE * LINE].splitlines()
