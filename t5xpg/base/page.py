"""Text, numbers and tables as Markdown that shows exactly them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError

UNKNOWN = "-"
_CHARACTERS = 240  # of a text in a cell

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# An underscore inside a word, a colon and a dot mark up nothing, but for addresses, which would become links.
_MARKUP = re.compile(
    r"[\\`*\[\]<>|~$&]"
    r"|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])"
    r"|:(?=//)|(?<=www)\."
)


def escape(text: str) -> str:
    """Text as Markdown that shows exactly it, on one line, in a table too.

    Characters that Markdown, HTML or GitHub could read as more than themselves become entities, which none of them
    reads as markup. Line ends are shown as ⏎, other white space as spaces, of which runs are kept, and control
    characters as �.
    """
    shown = _MARKUP.sub(lambda match: _ENTITIES.get(match[0], f"&#{ord(match[0])};"), one_line(text))
    return re.sub(r"^ +| +$|(?<= ) +", lambda match: "&nbsp;" * len(match[0]), shown)


def code(text: str) -> str:
    """A command as Markdown code, or escaped where code could not show it."""
    return escape(text) if not text.isprintable() or "`" in text or "|" in text else f"`{text}`"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None = None) -> str:
    """A table of cells that are Markdown already; columns from `numbers_from` on are aligned to the right."""
    rules = ["---" if numbers_from is None or index < numbers_from else "---:" for index in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rules, *rows))


def cell(given: Any) -> str:
    """A value of a record as a cell: a number with four digits, a text cut to fit, of a digest its start."""
    if isinstance(given, bool) or given is None:
        return UNKNOWN if given is None else str(given).lower()
    if isinstance(given, int):
        return f"{given:,}"
    if isinstance(given, float):
        return f"{given:.4g}"
    text = str(given)
    is_digest = len(text) == 64 and all(character in "0123456789abcdef" for character in text)
    return text[:12] + "…" if is_digest else escape(cut(text))


def decimals(given: float | None) -> str:
    """A measure as a cell, with three decimals."""
    return UNKNOWN if given is None else f"{given:.3f}"


def cut(text: str) -> str:
    """The text, or its beginning where it is longer than a cell."""
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"


_TABLE_CHARACTERS = 60  # of a cell


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
    return line if len(line) <= _TABLE_CHARACTERS else line[: _TABLE_CHARACTERS - 1] + "…"


def block_of(text: str, begin: str, end: str, file: Path) -> str:
    """The block in a page, markers included; "" where there is none. Raises UserError for broken markers."""
    begins, ends = text.count(begin), text.count(end)
    if begins == ends == 0:
        return ""
    first, last = text.find(begin), text.find(end)
    if begins != 1 or ends != 1 or last < first:
        raise UserError(f"{file} must hold {begin} and {end} once each, in this order.")
    return text[first : last + len(end)]


def with_block(text: str, new: str, begin: str, end: str, file: Path, heading: str = "## Results") -> str:
    """The page with `new`, markers included, in place of its block, or at its end under `heading` where it has none.

    Raises UserError for broken markers.
    """
    old = block_of(text, begin, end, file)
    return text.replace(old, new) if old else f"{text.rstrip()}\n\n{heading}\n\n{new}\n"


def one_line(text: str) -> str:
    """A text as a terminal shows it on one line: line ends as ⏎, white space as spaces, control characters as �."""
    shown = text.replace("\r\n", "\n").replace("\n", "⏎")
    shown = "".join(" " if character.isspace() else character for character in shown)
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in shown)
