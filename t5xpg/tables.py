"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from t5xpg.filling import one_line

_CHARACTERS = 60  # of a cell


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None = None) -> list[str]:
    """The lines of a table whose columns have one width; none where there are no rows.

    Columns from `numbers_from` on are aligned to the right. Cells stay on their line, and long ones are cut.
    """
    if not rows:
        return []
    lines = [[_cell(text) for text in line] for line in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    right = len(header) if numbers_from is None else numbers_from
    return [
        "  ".join(
            text.rjust(width) if column >= right else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def _cell(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _CHARACTERS else line[: _CHARACTERS - 1] + "…"
