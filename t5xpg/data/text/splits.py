"""Writing the splits of an export: what is kept of a source, and how a source without splits gets some."""

import array
import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from t5xpg.base.errors import UserError
from t5xpg.base.progress import Progress
from t5xpg.data.text.labelled import TEXT, question_of
from t5xpg.data.text.lines import BadLines
from t5xpg.data.text.manifest import (
    MIN_CHARACTERS,
    SPLITS,
    HeldOut,
    SplitRecord,
    canonical_line,
    canonical_record,
    content_hash,
    split_path,
)
from t5xpg.data.text.sources import Row, Rows, Source


def write_splits(
    name: str,
    source: Source,
    folder: Path,
    *,
    limit: int | None,
    max_bytes: int | None = None,
    left_out: BadLines | None = None,
    fields: Sequence[str] = TEXT,
) -> tuple[int, dict[str, SplitRecord]]:
    """Write the splits' files; how many rows were read, and the records. limit, max_bytes: most documents, and bytes of
    their texts, of each split, or of a source without splits. Nothing is read beyond them."""
    rows_read = 0
    splits: dict[str, SplitRecord] = {}

    def kept(rows: Rows, progress: Progress) -> Iterator[Row]:
        nonlocal rows_read
        count = size = 0
        for row in rows.texts:
            rows_read += 1
            progress.advance()
            texts = row if isinstance(row, tuple) else (row,)
            if row is texts or len(texts[0]) > MIN_CHARACTERS:
                if max_bytes is not None:
                    size += sum(len(text.encode("utf-8", errors="replace")) for text in texts)
                    if size > max_bytes:
                        return
                yield row
                count += 1
                if count == limit:
                    return

    for rows in source.read():
        label = f"export {name}" + (f" {rows.split}" if rows.split else "")
        with Progress(label, rows.total, "rows") as progress:
            if rows.split is None:
                splits |= _write_held_out(folder, kept(rows, progress), fields)
            else:
                with contextlib.closing(_SplitWriter(folder, rows.split)) as writer:
                    for row in kept(rows, progress):
                        writer.write(_line(row, fields))
                splits[rows.split] = writer.record()
    empty = [split for split, record in splits.items() if not record.documents]
    if empty or "train" not in splits:
        is_text = tuple(fields) == TEXT
        what = f"of more than {MIN_CHARACTERS} characters" if is_text else f"for {' and '.join(fields)}"
        raise UserError(
            f"{name} would have no {'document' if is_text else 'record'} in {' and '.join(empty or ['train'])}: kept "
            f"are rows with a text {what}, and {rows_read} rows were read."
            + (f" Lines left out: {left_out.count}; {left_out.first[0]}" if left_out and left_out.count else "")
        )
    return rows_read, {split: splits[split] for split in SPLITS if split in splits}


def _line(row: Row, fields: Sequence[str]) -> bytes:
    return canonical_record(row, fields) if isinstance(row, tuple) else canonical_line(row)


def _write_held_out(folder: Path, rows: Iterator[Row], fields: Sequence[str]) -> dict[str, SplitRecord]:
    """Write texts without splits: see `HeldOut`. Records with equal inputs are in one split."""
    question = list(fields).index(question_of(fields))
    hashes = array.array("Q")
    # in the folder of the export, which has room for it
    with tempfile.TemporaryFile(dir=folder) as spool:
        for row in rows:
            hashes.append(content_hash(row[question] if isinstance(row, tuple) else row))
            spool.write(_line(row, fields))
        held_out = HeldOut.of(
            hashes, f"documents of more than {MIN_CHARACTERS} characters" if tuple(fields) == TEXT else "records"
        )
        spool.seek(0)
        with contextlib.ExitStack() as stack:
            writers = {split: stack.enter_context(contextlib.closing(_SplitWriter(folder, split))) for split in SPLITS}
            for value, line in zip(hashes, spool, strict=True):
                writers[held_out.split_of(value)].write(line)
        return {split: writer.record() for split, writer in writers.items()}


class _SplitWriter:
    """Writes the lines of one split, counting and hashing them; a context manager."""

    def __init__(self, folder: Path, split: str) -> None:
        self._file: BinaryIO = split_path(folder, split).open("wb")
        self._digest = hashlib.sha256()
        self._documents = self._bytes = 0

    def close(self) -> None:
        self._file.close()

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self._digest.update(line)
        self._documents += 1
        self._bytes += len(line)

    def record(self) -> SplitRecord:
        """What was written."""
        return SplitRecord(self._documents, self._bytes, self._digest.hexdigest())
