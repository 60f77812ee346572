"""Python source code: the text of `pycode`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from t5xpg.data.installed_packages import SourceFile

# A file is cut before a top-level statement once a piece has this many characters, and before a method or an inner
# function once it has the second number.
_DOCUMENT_CHARACTERS = 2000
_LONG_DOCUMENT_CHARACTERS = 8000
# longer lines are data
_MAX_LINE_CHARACTERS = 300


def documents(files: Iterable[SourceFile]) -> Iterator[str]:
    """Pieces of source files at top-level statements, without licence headers; no piece occurs twice."""
    seen: set[bytes] = set()
    for file in files:
        for piece in _pieces(_without_header(file.text.split("\n"))):
            key = hashlib.sha256(piece.encode("utf-8", errors="replace")).digest()
            if key not in seen and _is_code(piece):
                seen.add(key)
                yield piece


def _without_header(lines: list[str]) -> list[str]:
    """The lines behind the comments that a file starts with (licence, encoding)."""
    start = 0
    while start < len(lines) and (not lines[start].strip() or lines[start].startswith("#")):
        start += 1
    return lines[start:]


def _pieces(lines: list[str]) -> Iterator[str]:
    piece: list[str] = []
    size = 0
    previous = ""
    for line in lines:
        if not previous.strip() and size >= _DOCUMENT_CHARACTERS and _may_start(line, size):
            yield "\n".join(piece).strip("\n")
            piece, size = [], 0
        piece.append(line.rstrip(" \t"))
        size += len(line) + 1
        previous = line
    yield "\n".join(piece).strip("\n")


def _may_start(line: str, size: int) -> bool:
    """Whether a piece may start with a line that follows an empty one."""
    if line[:1] not in ("", " ", "\t", ")", "]", "}"):
        return True
    return size >= _LONG_DOCUMENT_CHARACTERS and line.lstrip().startswith(("def ", "async def ", "class ", "@"))


def _is_code(piece: str) -> bool:
    """Not a table of data: lines of some length at most, and more letters than digits and signs."""
    visible = sum(1 for character in piece if not character.isspace())
    letters = sum(1 for character in piece if character.isascii() and character.isalpha())
    return letters >= 0.6 * visible and max(map(len, piece.split("\n"))) <= _MAX_LINE_CHARACTERS
