"""The user's own records: a text for each field. Parallel files of text, TSV, JSON lines and parquet."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from t5xpg.base.errors import UserError
from t5xpg.data.text.lines import BadLineError, BadLines, json_object, string_in, text_of_line
from t5xpg.data.text.local_files import JSON_LINES, PARQUET, cells, form_of, numbered_lines, parquet_rows
from t5xpg.data.text.manifest import SPLITS
from t5xpg.data.text.sources import Rows, files_as_json

TSV = ".tsv"
# One file, or one for each field: what gives records together.
Part: TypeAlias = tuple[Path, ...]
Record: TypeAlias = tuple[str, ...]
# Reads one line, or those that stand beside each other: None where there is no text. Raises BadLineError.
_Read: TypeAlias = Callable[[], Record | None]
_Line: TypeAlias = tuple[bytes | None, str]  # as `numbered_lines` gives them


@dataclass(frozen=True)
class LocalRecords:
    """The user's files: split to paths, or None to paths (see `local_files.parse_files`).

    fields: what each is called in the export, to what it is called in the files. Lines that cannot be used go into
    `left_out`; without it they are errors.
    """

    files: Mapping[str | None, list[Path]]
    fields: Mapping[str, str]
    left_out: BadLines | None = None

    def describe(self) -> dict[str, Any]:
        """Fields; paths as given, sizes and SHA-256 of the files."""
        return {"kind": "files", "fields": dict(self.fields), "files": files_as_json(self.files)}

    def read(self) -> Iterator[Rows]:
        """The records of the files, one file behind the other."""
        called = tuple(self.fields.values())
        parts = {split: parts_of(paths, called) for split, paths in self.files.items()}
        for split in (None, *SPLITS):
            if found := parts.get(split):
                yield Rows(split, (record for part in found for record in records(part, called, self.left_out)))


def parts_of(paths: Sequence[Path], fields: Sequence[str]) -> list[Part]:
    """The files of a split in parts, in order. Files of text end in their field: the first of each go together, …

    Raises UserError for a text of no field, and where a field has more files than another.
    """
    texts: dict[str, list[Path]] = {field: [] for field in fields}
    for path in paths:
        form = form_of(path)
        field = next((one for one in fields if f".{one}".lower() == form), None)
        if field is not None:
            texts[field].append(path)
        elif form not in (TSV, PARQUET, *JSON_LINES):
            stem = path.name.partition(".")[0]
            example = " ".join(f"{stem}.{one}" for one in fields)
            raise UserError(
                f"FILES: of which field is {path}? Files of text end in it: {example} (packed: {stem}.{fields[0]}.gz). "
                "Others are .tsv, .jsonl or .parquet."
            )
    if len({len(found) for found in texts.values()}) > 1:
        counts = ", ".join(f"{len(found)} end in .{field}" for field, found in texts.items())
        raise UserError(f"FILES: {counts}. Each file of text needs one of every other field, in the same order.")
    parallel = {part[0]: part for part in zip(*texts.values(), strict=True)}
    beside = {path for part in parallel.values() for path in part[1:]}
    return [parallel.get(path, (path,)) for path in paths if path not in beside]


def records(part: Part, fields: Sequence[str], left_out: BadLines | None = None) -> Iterator[Record]:
    """The texts of `fields` (their names in the files), record by record.

    The format comes from the name: `.tsv` (columns between tabs, in the order of `fields` or named by a first line),
    `.jsonl`, `.json`, `.ndjson` (an object a line), `.parquet`; several files are text, line for line. Lines without
    any text are passed over. Lines that are not of the format, or in which a field is empty, go into `left_out`;
    without it they raise UserError naming file and line. So do, in any case, a file that cannot be read on, and files
    of text with different numbers of lines.
    """
    form = form_of(part[0])
    if len(part) > 1:
        reads = _of_parallel(part)
    elif form == PARQUET:
        reads = _of_parquet(part[0], fields)
    else:
        reads = _of_columns(part[0], fields) if form == TSV else _of_objects(part[0], fields)
    for read in reads:
        try:
            record = read()
        except BadLineError as error:
            if left_out is None:
                raise
            left_out.add(error)
            continue
        if record is not None:
            yield record


def _of_parallel(part: Part) -> Iterator[_Read]:
    for lines in itertools.zip_longest(*map(numbered_lines, part)):
        if None in lines:
            counts = [f"{path} has {sum(1 for _ in numbered_lines(path)):,} lines" for path in part]
            raise UserError(f"{', '.join(counts)}: each line of the one needs its line in the others.")
        yield functools.partial(_side_by_side, lines)


def _side_by_side(lines: Sequence[_Line]) -> Record | None:
    return _complete(tuple(text_of_line(*line) for line in lines), [where for _, where in lines])


def _of_columns(path: Path, fields: Sequence[str]) -> Iterator[_Read]:
    columns = list(fields)
    for number, line in enumerate(numbered_lines(path)):
        if number == 0 and line[0] is not None:
            names = line[0].decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n").split("\t")
            if set(fields) <= set(names):  # the names of the columns
                columns = names
                continue
        yield functools.partial(_columns, line, columns, fields)


def _columns(line: _Line, columns: Sequence[str], fields: Sequence[str]) -> Record | None:
    text = text_of_line(*line)
    if not text.strip():
        return None
    values = text.split("\t")
    if len(values) != len(columns):
        raise BadLineError(
            f"{line[1]} has {len(values)} column{'s' if len(values) > 1 else ''}, expected {len(columns)}: "
            f"{', '.join(columns)}. (Columns of other names, or in another order, are named by a first line.)"
        )
    found = dict(zip(columns, values, strict=True))
    return _complete(tuple(found[field] for field in fields), fields, f"{line[1]}: ")


def _of_objects(path: Path, fields: Sequence[str]) -> Iterator[_Read]:
    example = "{" + ", ".join(f'"{field}": "…"' for field in fields) + "}"
    for line in numbered_lines(path):
        yield functools.partial(_object, line, fields, example)


def _object(line: _Line, fields: Sequence[str], example: str) -> Record | None:
    text, where = text_of_line(*line), line[1]
    if not text.strip():
        return None
    found = json_object(text, where, example)
    return _complete(tuple(string_in(found, field, where) for field in fields), fields, f"{where}: ")


def _of_parquet(path: Path, fields: Sequence[str]) -> Iterator[_Read]:
    for row, where in parquet_rows(path, fields):
        yield functools.partial(_cells, row, fields, where)


def _cells(row: Sequence[Any], fields: Sequence[str], where: str) -> Record | None:
    return _complete(cells(row, fields, where), fields, f"{where}: ")


def _complete(values: Record, names: Sequence[str], before: str = "") -> Record | None:
    """A record with a text in every field; None without any. names: of the fields, for the message."""
    empty = [name for name, value in zip(names, values, strict=True) if not value.strip()]
    if not empty:
        return values
    if len(empty) == len(values):
        return None
    filled = next(name for name in names if name not in empty)
    raise BadLineError(f"{before}{' and '.join(empty)} is empty, and {filled} is not.")
