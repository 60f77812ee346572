"""Writing the splits of an export: what is kept of a source, and how a source without splits gets some."""

from __future__ import annotations

import array
import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from t5xpg.data.datasets_table import Rows, Source, content_hash
from t5xpg.data.lines import BadLines
from t5xpg.data.manifest import SPLITS, SplitRecord, canonical_line, split_path
from t5xpg.errors import UserError
from t5xpg.progress import Progress

# A row is kept if its text is longer.
MIN_CHARACTERS = 100
# Where a source has no splits, one text in so many goes into validation, another into test, up to a number.
_HELD_OUT_OF = 25
_MAX_HELD_OUT = 10_000


def write_splits(
    name: str, source: Source, folder: Path, limit: int | None, left_out: BadLines | None
) -> tuple[int, dict[str, SplitRecord]]:
    """Write the splits' files; how many rows were read, and the records."""
    rows_read = 0
    splits: dict[str, SplitRecord] = {}
    for rows in source.read():
        label = f"export {name}" + (f" {rows.split}" if rows.split else "")
        with Progress(label, rows.total, "rows") as progress:

            def kept_texts(rows: Rows = rows, progress: Progress = progress) -> Iterator[str]:
                nonlocal rows_read
                taken = 0
                for text in rows.texts:
                    rows_read += 1
                    progress.advance()
                    if len(text) > MIN_CHARACTERS:
                        yield text
                        taken += 1
                        if taken == limit:
                            return

            if rows.split is None:
                splits |= _write_held_out(folder, kept_texts())
            else:
                with _SplitWriter(folder, rows.split) as writer:
                    for text in kept_texts():
                        writer.write(canonical_line(text))
                splits[rows.split] = writer.record()
    empty = [split for split, record in splits.items() if not record.documents]
    if empty or "train" not in splits:
        raise UserError(
            f"{name} would have no document in {' and '.join(empty or ['train'])}: kept are rows with a text of more "
            f"than {MIN_CHARACTERS} characters, and {rows_read} rows were read."
            + (f" Lines left out: {left_out.count}; {left_out.first[0]}" if left_out and left_out.count else "")
        )
    return rows_read, {split: splits[split] for split in SPLITS if split in splits}


def _write_held_out(folder: Path, texts: Iterator[str]) -> dict[str, SplitRecord]:
    """Write texts without splits: the smallest content hashes are validation, the next ones test, the rest train.

    Equal texts have equal hashes, so they are in one split.
    """
    hashes = array.array("Q")
    # in the folder of the export, which has room for it
    with tempfile.TemporaryFile(dir=folder) as spool:
        for text in texts:
            hashes.append(content_hash(text))
            spool.write(canonical_line(text))
        ordered = sorted(set(hashes))
        if len(ordered) < len(SPLITS):
            raise UserError(
                f"{len(ordered)} different documents of more than {MIN_CHARACTERS} characters cannot be split into "
                'train, validation and test: give more text, or name the splits, FILES="train=… validation=… test=…".'
            )
        held_out = min(max(1, len(ordered) // _HELD_OUT_OF), _MAX_HELD_OUT)
        last_validation, last_test = ordered[held_out - 1], ordered[2 * held_out - 1]
        spool.seek(0)
        with contextlib.ExitStack() as stack:
            writers = {split: stack.enter_context(_SplitWriter(folder, split)) for split in SPLITS}
            for value, line in zip(hashes, spool, strict=True):
                split = "validation" if value <= last_validation else "test" if value <= last_test else "train"
                writers[split].write(line)
        return {split: writer.record() for split, writer in writers.items()}


class _SplitWriter:
    """Writes the lines of one split, counting and hashing them; a context manager."""

    def __init__(self, folder: Path, split: str) -> None:
        self._file: BinaryIO = split_path(folder, split).open("wb")
        self._digest = hashlib.sha256()
        self._documents = 0
        self._bytes = 0

    def __enter__(self) -> _SplitWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self._digest.update(line)
        self._documents += 1
        self._bytes += len(line)

    def record(self) -> SplitRecord:
        """What was written."""
        return SplitRecord(self._documents, self._bytes, self._digest.hexdigest())
