"""The part of a Markdown page that a program writes: between two markers, everything outside them is left alone."""

from __future__ import annotations

from pathlib import Path

from t5xpg.errors import UserError


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
