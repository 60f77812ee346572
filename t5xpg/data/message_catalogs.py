"""Translated messages of programs, from the catalogues of GNU gettext: text in a language that a machine has at hand.

What is read is files alone, `<language>/LC_MESSAGES/*.mo` (gettext's manual, "The Format of GNU MO Files").
"""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from t5xpg.errors import UserError

# Where programs install their catalogues on Linux, and on macOS by its package managers.
FOLDERS = (
    Path("/usr/share/locale"),
    Path("/usr/local/share/locale"),
    Path("/opt/homebrew/share/locale"),
    Path("/opt/local/share/locale"),
)
# Messages of one catalogue are joined until a document has this many characters.
_DOCUMENT_CHARACTERS = 1500
_FEWEST_WORDS = 3
_MAGIC = 0x950412DE
_CHARSET = re.compile(rb"charset=([A-Za-z0-9_.:-]+)")


def catalogs(languages: Iterable[str], folders: Iterable[Path]) -> list[tuple[str, Path]]:
    """The catalogues of languages: their names, `nb/LC_MESSAGES/grep.mo`, and their files, in an order of names."""
    found: dict[str, Path] = {}
    wanted = list(languages)
    for folder in folders:
        for language in wanted:
            for path in sorted((folder / language / "LC_MESSAGES").glob("*.mo")):
                if path.is_file():
                    found.setdefault(path.relative_to(folder).as_posix(), path)
    return sorted(found.items())


def documents(paths: Iterable[Path]) -> Iterator[str]:
    """Messages of some words, a line each, joined to documents catalogue by catalogue; none occurs twice."""
    seen: set[str] = set()
    for path in paths:
        lines: list[str] = []
        for message in translations(path):
            line = " ".join(message.split())
            if line not in seen and _is_text(line):
                seen.add(line)
                lines.append(line)
                if sum(map(len, lines)) >= _DOCUMENT_CHARACTERS:
                    yield "\n".join(lines)
                    lines = []
        if lines:
            yield "\n".join(lines)


def translations(path: Path) -> Iterator[str]:
    """The messages of a catalogue that are translated, in its order, each form of a plural by itself.

    Messages that are not in the catalogue's encoding are left out. Raises UserError where the file is no catalogue.
    """
    data = path.read_bytes()
    try:
        pairs = list(_pairs(data))
        header = next((translated for original, translated in pairs if not original), b"")
        charset = _CHARSET.search(header)
        decode = codecs.lookup(charset[1].decode("ascii") if charset else "utf-8").decode
    except (ValueError, LookupError, struct.error) as error:
        raise UserError(f"{path} cannot be read as a catalogue of messages: {error}.") from None
    for original, translated in pairs:
        untranslated = original.split(b"\0")
        for form in translated.split(b"\0"):
            if original and form and form not in untranslated:
                try:
                    yield decode(form)[0]
                except UnicodeDecodeError:
                    continue


def _pairs(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Originals and translations as they stand in a file. Raises ValueError or struct.error for something else."""
    order = next((order for order in "<>" if struct.unpack_from(f"{order}I", data)[0] == _MAGIC), None)
    if order is None:
        raise ValueError("it does not begin as one")
    count, *tables = struct.unpack_from(f"{order}3I", data, 8)
    for index in range(count):
        original, translated = (_string(data, order, table + 8 * index) for table in tables)
        yield original, translated


def _string(data: bytes, order: str, at: int) -> bytes:
    length, start = struct.unpack_from(f"{order}2I", data, at)
    if start + length > len(data):
        raise ValueError("it is cut off")
    return data[start : start + length]


def _is_text(line: str) -> bool:
    """Words for the most part, and not names, options or places to be filled in."""
    letters = sum(1 for character in line if character.isalpha())
    visible = sum(1 for character in line if not character.isspace())
    return len(line.split()) >= _FEWEST_WORDS and letters >= 0.75 * visible
