"""Texts and records of the user's files: lines of text, parallel files of text, TSV, JSON lines and parquet."""

import functools
import itertools
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from t5xpg.base.errors import UserError
from t5xpg.data.text.labelled import TEXT
from t5xpg.data.text.lines import (
    EMPTY,
    LONGEST_LINE,
    Answers,
    BadLineError,
    LeftOutRows,
    json_object,
    text_in,
    text_of_line,
    value_in,
)
from t5xpg.data.text.local_files import JSON_LINES, PARQUET, form_of, numbered_lines, parquet_rows

TSV = ".tsv"
# The files that give records together: one file, or one for each field.
Part: TypeAlias = tuple[Path, ...]
Record: TypeAlias = tuple[str, ...]  # the text of each field, one of several answers as `Answers`
Line: TypeAlias = tuple[bytes | None, str]  # as `numbered_lines` yields it: its bytes and its place


def parts_of(paths: Sequence[Path], fields: Sequence[str]) -> list[Part]:
    """The files of a split in parts, in order. The names of text files end in their field; the first files of all
    fields form a part, then the second ones, and so on. Raises UserError for a text file without a field, and for
    fields with different numbers of files."""
    if tuple(fields) == TEXT:
        return [(path,) for path in paths]
    texts: dict[str, list[Path]] = {field: [] for field in fields}
    for path in paths:
        form = form_of(path)
        field = next((name for name in fields if f".{name}".lower() == form), None)
        if field is not None:
            texts[field].append(path)
        elif form not in (TSV, PARQUET, *JSON_LINES):
            stem = path.name.partition(".")[0]
            example = " ".join(f"{stem}.{name}" for name in fields)
            raise UserError(
                f"FILES: of which field is {path}? Files of text end in it: {example} (packed: {stem}.{fields[0]}.gz). "
                "Others are .tsv, .jsonl or .parquet."
            )
    if len(set(map(len, texts.values()))) > 1:
        counts = ", ".join(f"{len(files)} end in .{field}" for field, files in texts.items())
        raise UserError(f"FILES: {counts}. Each file of text needs one of every other field, in the same order.")
    parallel = {part[0]: part for part in zip(*texts.values(), strict=True)}
    later_files = {path for part in parallel.values() for path in part[1:]}
    return [parallel.get(path, (path,)) for path in paths if path not in later_files]


def records(
    part: Part,
    fields: Sequence[str] = TEXT,
    left_out: LeftOutRows | None = None,
    answer: str = "",
    several: bool = False,
) -> Iterator[Record]:
    """Yields the texts of `fields` (their names in the files), record by record. answer: the field whose values may be
    numbers in JSON and parquet, and, with `several`, lists of answers that are equally right.

    The format comes from the name: `.jsonl`, `.json`, `.ndjson` (an object a line), `.parquet`, for records `.tsv`
    (columns between tabs, in the order of `fields` or named by a first line); else text in UTF-8, a document a line;
    several files are text, line for line. `.gz`, `.bz2`, `.xz` or `.zst` may follow in the name.

    Blank lines of JSON and TSV, and records of several fields that are all empty, are left out. Malformed lines, and
    records with only some fields empty, are left out or raise UserError naming file and line, as `left_out` says; it
    counts all of them. A file that cannot be read on, and parallel files of different lengths, raise UserError.
    """
    left_out = LeftOutRows() if left_out is None else left_out
    text_of = functools.partial(_answer, several=several)
    items, parse = _items_and_parser(part, fields, {name: text_of if name == answer else text_in for name in fields})
    for item in items:
        try:
            record = parse(item)
        except BadLineError as error:
            left_out.add_malformed(error)
            continue
        if record is None:
            left_out.counts[EMPTY] += 1
        else:
            yield record


def _items_and_parser(
    part: Part, fields: Sequence[str], texts: Mapping[str, Callable[..., str]]
) -> tuple[Iterator[Any], Callable[[Any], Record | None]]:
    """The items of a part, and the function from an item to its record: None for one without text. texts: from (value,
    field, place) to the text, by field."""
    form = form_of(part[0])
    if len(part) > 1:
        return _parallel_lines(part), lambda lines: _complete(
            tuple(text_of_line(*line) for line in lines), [where for _, where in lines]
        )
    if form == PARQUET:
        return parquet_rows(part[0], fields), lambda row: _record_of_row(row, texts)
    if form in JSON_LINES:
        example = "{" + ", ".join(f'"{field}": "…"' for field in fields) + "}"
        return numbered_lines(part[0]), lambda line: _object(line, texts, example)
    if tuple(fields) == TEXT:
        return numbered_lines(part[0]), lambda line: (text_of_line(*line),)
    return _column_lines(part[0], fields), lambda line: _columns(line, fields)


def _parallel_lines(part: Part) -> Iterator[Sequence[Line]]:
    """Yields the lines of several files side by side. Raises UserError if one has more lines than another."""
    for lines in itertools.zip_longest(*map(numbered_lines, part)):
        if None in lines:
            counts = [f"{path} has {sum(1 for _ in numbered_lines(path)):,} lines" for path in part]
            raise UserError(f"{', '.join(counts)}: each line of the one needs its line in the others.")
        yield lines


def _column_lines(path: Path, fields: Sequence[str]) -> Iterator[tuple[bytes | None, str, Sequence[str]]]:
    columns, is_first = list(fields), True
    for line, where in numbered_lines(path):
        if is_first and line is not None and line.strip():
            is_first = False
            names = line.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n").split("\t")
            if set(fields) <= {name.strip().lower() for name in names} and not set(fields) <= set(names):
                raise UserError(f"{where} names the columns {', '.join(names)}: write these as {', '.join(fields)}.")
            if set(fields) <= set(names):
                if twice := [field for field in fields if names.count(field) > 1]:
                    raise UserError(f"{where} names the column {twice[0]} twice.")
                columns = names
                continue
        yield line, where, columns


def _columns(line: tuple[bytes | None, str, Sequence[str]], fields: Sequence[str]) -> Record | None:
    content, where, columns = line
    text = text_of_line(content, where)
    if not text.strip():
        return None
    values = text.split("\t")
    if len(values) != len(columns):
        raise BadLineError(
            f"{where} has {len(values)} column{'s' if len(values) > 1 else ''}, expected {len(columns)}: "
            f"{', '.join(columns)}. (Columns of other names, or in another order, are named by a first line.)"
        )
    record = dict(zip(columns, values, strict=True))
    return _complete(tuple(record[field] for field in fields), fields, where)


def _object(line: Line, texts: Mapping[str, Callable[..., str]], example: str) -> Record | None:
    text, where = text_of_line(*line), line[1]
    if not text.strip():
        return None
    value = json_object(text, where, example)
    return _complete(
        tuple([text(value_in(value, name, where), name, where) for name, text in texts.items()]), texts, where
    )


def _record_of_row(row: tuple[Sequence[Any] | None, str], texts: Mapping[str, Callable[..., str]]) -> Record | None:
    """The record of a row of parquet: its values, None where they are too long, and where it stands. Raises
    BadLineError."""
    values, where = row
    if values is None:
        raise BadLineError(f"{where} is longer than {LONGEST_LINE >> 20} MiB. Expected a document a row.")
    record = tuple([text(value, name, where) for (name, text), value in zip(texts.items(), values, strict=True)])
    if too_long := [name for name, text in zip(texts, record, strict=True) if len(text) > LONGEST_LINE]:
        raise BadLineError(
            f'{where}: "{too_long[0]}" is longer than {LONGEST_LINE >> 20} MiB. Expected a document a row.'
        )
    return _complete(record, texts, where)


def _answer(value: Any, name: str, where: str, several: bool) -> str:
    """The text of an answer: of a number as JSON writes it; of a list the first one, with the others as `Answers`."""
    if several and isinstance(value, list):
        answers = dict.fromkeys(text for one in value if (text := _answer(one, name, where, False)).strip())
        return Answers.of(tuple(answers)) if len(answers) > 1 else next(iter(answers), "")
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return json.dumps(value) if is_number else text_in(value, name, where)


def _complete(values: Record, names: Collection[str], where: str = "") -> Record | None:
    """The record if all its fields have text, or it has one field; None if none has text. names: for the message."""
    empty = [name for name, value in zip(names, values, strict=True) if not value.strip()]
    if not empty or len(values) == 1:  # the export leaves out short texts
        return values
    if len(empty) == len(values):
        return None
    filled = next(name for name in names if name not in empty)
    raise BadLineError(f"{where and f'{where}: '}{' and '.join(empty)} is empty, and {filled} is not.")
