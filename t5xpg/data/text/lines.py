"""Lines of files that anyone may have written: bounded, decoded, parsed; errors name file and line."""

import collections
import json
import re
from collections.abc import Iterator
from typing import IO, Any

from t5xpg.base.errors import UserError, kind_of, nearest

# A longer line is no document (but a device, or a file without line ends), and would fill the memory.
LONGEST_LINE = 64 * 2**20
# Deeper JSON can be read, but may not be written again where the call stack is deeper.
_MAX_DEPTH = 100
_MAX_SHOWN = 5
SURROGATE = re.compile("[\ud800-\udfff]")  # alone, it is half a character


class BadLineError(UserError):
    """A line that cannot be used; later lines can."""


class Answers(str):
    """An answer, the first of several that are equally right. all: them all."""

    all: tuple[str, ...]

    @classmethod
    def of(cls, answers: tuple[str, ...]) -> "Answers":
        """The first of the answers, with all of them."""
        first = cls(answers[0])
        first.all = answers
        return first


MALFORMED, EMPTY = "malformed", "empty"  # reasons to leave a row out


class LeftOutRows:
    """The rows that an export leaves out, counted by reason, and what was wrong with the first malformed ones.

    skip_malformed: True if malformed rows are left out; otherwise they are errors.
    """

    def __init__(self, skip_malformed: bool = False) -> None:
        self.skip_malformed = skip_malformed
        self.counts: collections.Counter[str] = collections.Counter()
        self.first: list[str] = []
        self.half_characters = 0  # rows that are kept with U+FFFD in place of lone surrogates

    def add_malformed(self, error: BadLineError) -> None:
        """Count a malformed line as left out; raise the error unless `skip_malformed`."""
        if not self.skip_malformed:
            raise error
        self.counts[MALFORMED] += 1
        if len(self.first) < _MAX_SHOWN:
            self.first.append(str(error))

    def summary(self) -> str:
        """One line for the counts, and one for each of the first malformed lines; "" where all rows were kept."""
        if not self.counts:
            return ""
        more = self.counts[MALFORMED] - len(self.first)
        counts = ", ".join(f"{count:,} {reason}" for reason, count in self.counts.items())
        total = self.counts.total()
        head = f"{total:,} {'row was' if total == 1 else 'rows were'} left out: {counts}"
        return "\n  ".join([head, *self.first, *([f"and {more} more"] if more else [])])


def bounded_lines(file: IO[bytes], longest: int = LONGEST_LINE) -> Iterator[bytes | None]:
    """The lines of a file with their ends; None for one of more than `longest` bytes, which is not held in memory."""
    while line := file.readline(longest + 1):
        if len(line) <= longest:
            yield line
            continue
        yield None
        while line and not line.endswith(b"\n"):
            line = file.readline(1 << 20)


def text_of_line(line: bytes | None, where: str) -> str:
    """A line as text, without line end and BOM. BadLineError if it is too long, not UTF-8, or has a zero byte."""
    if line is None:
        raise BadLineError(
            f"{where} is longer than {LONGEST_LINE >> 20} MiB. Expected a document a line: is this a text file?"
        )
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLineError(
            f"{where} is not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}). "
            "Expected text in UTF-8, or a name that says how it is packed (.gz, .bz2, .xz, .zst, .parquet)."
        ) from None
    if "\0" in text:
        raise BadLineError(f"{where} holds a zero byte: not a text file.")
    return text.rstrip("\r\n").removeprefix("\ufeff")


def json_object(line: str, where: str, example: str) -> dict[str, Any]:
    """The JSON object in a line. example: of an object, for the message. Raises BadLineError for any other line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise BadLineError(f"{where} is not JSON ({reason}). Expected one {example} a line.") from None
    if not isinstance(value, dict):
        raise BadLineError(f"{where} holds {kind_of(value)}. Expected one {example} a line.")
    is_nested = not {dict, list}.isdisjoint(map(type, value.values()))
    level: list[Any] = [value] if is_nested and line.count("[") + line.count("{") > _MAX_DEPTH else []
    for _ in range(_MAX_DEPTH + 1):
        if not level:
            return value
        inside = [item.values() if isinstance(item, dict) else item for item in level]
        level = [item for items in inside for item in items if isinstance(item, dict | list)]
    raise BadLineError(f"{where} is nested more than {_MAX_DEPTH} deep. Expected one {example} a line.")


def string_in(value: dict[str, Any], name: str, where: str) -> str:
    """The string `name` of a JSON object. Raises BadLineError if it is missing or no string."""
    return text_in(value_in(value, name, where), name, where)


def value_in(value: dict[str, Any], name: str, where: str) -> Any:
    """The value `name` of a JSON object. Raises BadLineError if it is missing."""
    if name not in value:
        raise BadLineError(f'{where} has no "{name}".{nearest(name, value)}')
    return value[name]


def text_in(value: Any, name: str, where: str) -> str:
    """The value of a field, which is to be a string. Raises BadLineError if it is none."""
    if not isinstance(value, str):
        raise BadLineError(f'{where}: "{name}" is {kind_of(value)}, expected a string.')
    return value
