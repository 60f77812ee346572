"""Where a name stands in a TOML text, which tomllib does not say: the line that a message can point to."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HEADER = re.compile(r"\s*\[{1,2}\s*(?P<name>[^\[\]#]+?)\s*\]{1,2}\s*(#.*)?")
_KEY = re.compile(r"\s*(?P<name>[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')\s*=")


class Places:
    """Line numbers in a text whose tables have headers of their own, one key a line."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()

    def line(self, table: str = "", key: str | None = None, value: str | None = None, index: int = 0) -> int:
        """The line of a table's header; of one of its keys; of a text that stands, quoted, behind that key.

        Counted from 1. The nearest of these that is found: a table written otherwise has the first line of all. table:
        its full name, "" for what stands before all headers. index: of the tables of one name, `[[name]]`, which.
        """
        header, inside = next(_at(self._tables(), table, index), (1, range(0)))
        if key is None:
            return header
        at = next((number for number in inside if self._key(number) == key), None)
        if at is None or value is None:
            return header if at is None else at
        quoted = (f'"{value}"', f"'{value}'")
        return next((n for n in inside if n >= at and any(one in self._lines[n - 1] for one in quoted)), at)

    def _tables(self) -> Iterator[tuple[str, int, range]]:
        """Name, line of the header, and lines of every table."""
        headers = [(1, "", 1)]
        for number, line in enumerate(self._lines, start=1):
            if match := _HEADER.fullmatch(line):
                headers.append((number, match["name"].replace(" ", ""), number + 1))
        ends = [number for number, _, _ in headers[1:]] + [len(self._lines) + 1]
        for (number, name, first), end in zip(headers, ends, strict=True):
            yield name, number, range(first, end)

    def _key(self, number: int) -> str | None:
        match = _KEY.match(self._lines[number - 1])
        return match["name"].strip("\"'") if match else None


def _at(tables: Iterator[tuple[str, int, range]], name: str, index: int) -> Iterator[tuple[int, range]]:
    found = [(number, lines) for found, number, lines in tables if found == name]
    yield from found[index : index + 1]
