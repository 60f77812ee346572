"""What a run was fed: the hash of every batch on disk, and the last batches themselves in memory.

`batches.sha256` has one line for every update, in order: the hash (`batch.hash_batch`, 64 hex digits) of its batch. All
lines have one length, so that any of them is found, and the file cut, in constant time. Two runs that saw the same data
in the same order have the same file.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from t5xpg.batch import Batch, hash_batch
from t5xpg.phases import tell

LINE = 65  # bytes: the digits and a line end
UNKNOWN = "-" * (LINE - 1)  # for updates before the file was kept
_KEPT = 2  # metrics are read one update late: the batch of a bad one is the last but one


class BatchTrail(Iterator[Batch]):
    """Passes batches on to the updates that follow `step`, and keeps the trail in the file `path`."""

    def __init__(self, batches: Iterator[Batch], path: Path, step: int) -> None:
        self._batches = batches
        self._step = step
        self._recent: deque[tuple[int, Batch]] = deque(maxlen=_KEPT)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        # What an earlier process was fed after the checkpoint is fed again.
        size = min(os.fstat(self._file.fileno()).st_size, step * LINE) // LINE * LINE
        self._file.truncate(size)
        self._file.write(f"{UNKNOWN}\n".encode("ascii") * (step - size // LINE))

    def __next__(self) -> Batch:
        """The batch of the next update."""
        tell("begin", "step", self._step + 1)
        batch = next(self._batches)
        self._step += 1
        self._recent.append((self._step, batch))
        self._file.write(f"{hash_batch(batch)}\n".encode("ascii"))
        return batch

    def batch_of(self, step: int) -> Batch | None:
        """The batch of one of the last updates; None for others."""
        return next((batch for at, batch in self._recent if at == step), None)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_trail(path: Path) -> list[str]:
    """The hashes of a run's batches, from update 1 on; without a last line that was cut off."""
    text = path.read_text(encoding="ascii")
    return text[: len(text) // LINE * LINE].splitlines()
