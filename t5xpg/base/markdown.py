"""Text, numbers and tables for people: as Markdown that shows them exactly, and in columns for a terminal."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError

UNKNOWN = "-"
_MAX_CELL, _MAX_COLUMN = 240, 60  # characters of a cell

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# An underscore inside a word, a colon and a dot are no markup, except in addresses, which would become links.
_MARKUP = re.compile(
    r"[\\`*\[\]<>|~$&]"
    r"|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])"
    r"|:(?=//)|(?<=www)\."
)


def one_line(text: str) -> str:
    """A text as a terminal shows it on one line: line ends as ⏎, white space as spaces, control characters as �."""
    shown = text.replace("\r\n", "\n").replace("\n", "⏎")
    shown = "".join(" " if character.isspace() else character for character in shown)
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in shown)


def cut(text: str, longest: int = _MAX_CELL) -> str:
    """The text, or its beginning if it is longer than a cell."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def escape(text: str) -> str:
    """Text as Markdown that shows it exactly, on one line, also in a table.

    Characters that Markdown, HTML or GitHub could read as markup become entities, which none of them reads as
    markup; see `one_line` for line ends and control characters. Runs of spaces are kept.
    """
    shown = _MARKUP.sub(lambda match: _ENTITIES.get(match[0], f"&#{ord(match[0])};"), one_line(text))
    return re.sub(r"^ +| +$|(?<= ) +", lambda match: "&nbsp;" * len(match[0]), shown)


def code(text: str) -> str:
    """A command as Markdown code, or escaped if code cannot show it."""
    return escape(text) if not text.isprintable() or "`" in text or "|" in text else f"`{text}`"


def cell(value: Any) -> str:
    """A value of a record as a Markdown cell: a float with four digits, a text cut to fit, the start of a digest."""
    if isinstance(value, bool) or value is None:
        return UNKNOWN if value is None else str(value).lower()
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    text = str(value)
    return text[:12] + "…" if re.fullmatch("[0-9a-f]{64}", text) else escape(cut(text))


def decimals(value: float | None) -> str:
    """A measure as a cell, with three decimals."""
    return UNKNOWN if value is None else f"{value:.3f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None = None) -> str:
    """A Markdown table of cells that are Markdown already; columns from `numbers_from` on are aligned to the right."""
    rules = ["---" if numbers_from is None or index < numbers_from else "---:" for index in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rules, *rows))


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None = None) -> list[str]:
    """The lines of a table for a terminal, whose columns have one width; none without rows.

    Columns from `numbers_from` on are aligned to the right. Cells stay on their line, and long ones are cut.
    """
    if not rows:
        return []
    lines = [[cut(one_line(text), _MAX_COLUMN) for text in line] for line in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    right = len(header) if numbers_from is None else numbers_from
    return [
        "  ".join(
            text.rjust(width) if column >= right else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def block_of(text: str, begin: str, end: str, file: Path) -> str:
    """The block in a page, markers included; "" without markers. Raises UserError for broken markers."""
    begins, ends = text.count(begin), text.count(end)
    if begins == ends == 0:
        return ""
    first, last = text.find(begin), text.find(end)
    if begins != 1 or ends != 1 or last < first:
        raise UserError(f"{file} must hold {begin} and {end} once each, in this order.")
    return text[first : last + len(end)]


def with_block(text: str, new: str, begin: str, end: str, file: Path) -> str:
    """The page with the block `new`, markers included, in place of its own, or at its end under "Results". Raises
    UserError for broken markers."""
    old = block_of(text, begin, end, file)
    if old:
        return text.replace(old, new)
    text = text.rstrip().removesuffix("\n## Results").rstrip()
    return f"{text}\n\n## Results\n\n{new}\n"
