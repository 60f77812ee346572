"""Writing the splits of an export: the filter for rows, and the division of a source without splits into train,
validation and test, by the hashes of its documents."""

import array
import contextlib
import dataclasses
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from t5xpg.base.errors import UserError
from t5xpg.base.progress import Progress
from t5xpg.data.text.labelled import TEXT, question_of
from t5xpg.data.text.lines import EMPTY, SURROGATE, Answers, LeftOutRows
from t5xpg.data.text.manifest import (
    SPLITS,
    Manifest,
    SplitRecord,
    canonical_line,
    canonical_record,
    split_order,
    split_path,
)
from t5xpg.data.text.sources import Row, Rows, Source

# One text in _HELD_OUT_OF goes into validation, another into test, up to _MAX_HELD_OUT texts each.
_HELD_OUT_OF = 25
_MAX_HELD_OUT = 10_000


def write_splits(requested: Manifest, source: Source, folder: Path, left_out: LeftOutRows) -> Manifest:
    """Write the files of the splits of the `requested` export. Returns its manifest with their records.

    left_out: counts the rows that are not written: empty ones, texts shorter than the filter's min_characters, the one
    beyond max_bytes. The export's limit and max_bytes are the most documents, and bytes of text, of each split or of a
    source without splits; no more is read. Raises UserError for empty splits.
    """
    min_characters, limit, max_bytes = requested.filter["min_characters"], requested.limit, requested.max_bytes
    fields = requested.fields
    short = f"shorter than {min_characters} characters"
    splits: dict[str, SplitRecord] = {}
    several = 0

    def filtered(rows: Rows, progress: Progress) -> Iterator[Row]:
        nonlocal several
        count = size = 0
        for row in rows.texts:
            progress.advance()
            texts = row if isinstance(row, tuple) else (row,)
            if isinstance(row, str) and (len(row) < min_characters or row.isspace()):
                left_out.counts[short if row.strip() else EMPTY] += 1
                continue
            if max_bytes is not None:
                size += sum(len(text.encode("utf-8", errors="replace")) for text in texts)
                if size > max_bytes:
                    left_out.counts["beyond MAX_MB"] += 1
                    return
            left_out.half_characters += any(SURROGATE.search(text) for text in texts if not text.isascii())
            several += isinstance(row, tuple) and any(isinstance(text, Answers) for text in row)
            yield row
            count += 1
            if count == limit:
                return

    for rows in source.read():
        label = f"export {requested.name}" + (f" {rows.split}" if rows.split else "")
        with Progress(label, rows.total, "rows") as progress:
            if rows.split is None:
                splits |= _write_held_out(folder, filtered(rows, progress), fields, left_out)
            else:
                splits[rows.split] = _write_split(folder, rows.split, filtered(rows, progress), fields)
    empty = [split for split, record in splits.items() if not record.documents]
    if empty or not splits:
        kind = "document" if tuple(fields) == TEXT else "record"
        raise UserError(
            f"{requested.name} would have no {kind} in {' and '.join(empty or ['any split'])}: "
            f"{_num_read(splits, left_out)} rows were read. {' '.join(left_out.summary().split()[:40])}"
        )
    in_order = {split: splits[split] for split in sorted(splits, key=split_order)}
    read = _num_read(splits, left_out)
    return dataclasses.replace(requested, rows_read=read, splits=in_order, several_answers=several)


def _num_read(splits: dict[str, SplitRecord], left_out: LeftOutRows) -> int:
    return sum(record.documents for record in splits.values()) + left_out.counts.total()


def _line(row: Row, fields: Sequence[str]) -> bytes:
    return canonical_record(row, fields) if isinstance(row, tuple) else canonical_line(row)


def _write_split(folder: Path, split: str, rows: Iterator[Row], fields: Sequence[str]) -> SplitRecord:
    with contextlib.closing(_SplitWriter(folder, split)) as writer:
        for row in rows:
            writer.write(_line(row, fields))
    return writer.record()


def _write_held_out(
    folder: Path, rows: Iterator[Row], fields: Sequence[str], left_out: LeftOutRows
) -> dict[str, SplitRecord]:
    """Write a source without splits: the smallest hashes are validation, the next ones test. Records with equal inputs
    are in one split."""
    question = list(fields).index(question_of(fields))
    hashes = array.array("Q")
    # in the folder of the export, which has room for it
    with tempfile.TemporaryFile(dir=folder) as spool:
        for row in rows:
            hashes.append(_content_hash(row[question] if isinstance(row, tuple) else row))
            spool.write(_line(row, fields))
        ordered = sorted(set(hashes))
        if len(ordered) < len(SPLITS):
            noun = "documents" if tuple(fields) == TEXT else "records"
            raise UserError(
                f"{len(ordered)} different {noun} cannot be split into train, validation and test: give more text, or "
                f'name the splits, FILES="train=… validation=… test=…". {left_out.summary()}'.rstrip()
            )
        count = min(max(1, len(ordered) // _HELD_OUT_OF), _MAX_HELD_OUT)
        last_validation, last_test = ordered[count - 1], ordered[2 * count - 1]
        spool.seek(0)
        with contextlib.ExitStack() as stack:
            writers = {split: stack.enter_context(contextlib.closing(_SplitWriter(folder, split))) for split in SPLITS}
            for value, line in zip(hashes, spool, strict=True):
                split = "validation" if value <= last_validation else "test" if value <= last_test else "train"
                writers[split].write(line)
        return {split: writer.record() for split, writer in writers.items()}


def _content_hash(text: str) -> int:
    """The first 64 bits of the SHA-256 of a text: the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", errors="replace")).digest()[:8], "big")


class _SplitWriter:
    """Writes the lines of one split, counting and hashing them, until `close`."""

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
        """The record of the written file."""
        return SplitRecord(self._documents, self._bytes, self._digest.hexdigest())
