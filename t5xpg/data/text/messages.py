"""The translated messages that programs of this machine bring: gettext's catalogues, read as text of a language."""

import codecs
import hashlib
import itertools
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.files import sha256_of_file
from t5xpg.data.text.package_documents import joined
from t5xpg.data.text.sources import Rows

# Where programs install their catalogues on Linux, and on macOS by its package managers.
FOLDERS = (
    Path("/usr/share/locale"),
    Path("/usr/local/share/locale"),
    Path("/opt/homebrew/share/locale"),
    Path("/opt/local/share/locale"),
)
_FEWEST_WORDS = 3  # of a message that is text
_CHARSET = re.compile(rb"charset=([A-Za-z0-9_.:-]+)")


@dataclass(frozen=True)
class InstalledMessages:
    """The translations of messages that the programs of this machine bring: another text on another machine. languages:
    names of folders below share/locale. extraction: counts changes to how they are read."""

    languages: tuple[str, ...]
    extraction: int = 1
    folders: tuple[Path, ...] = FOLDERS

    def describe(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        found = catalogs(self.languages, self.folders)
        for name, path in found:
            digest.update(f"{name} {sha256_of_file(path)}\n".encode())
        return {
            "kind": "messages of programs",
            "languages": " ".join(self.languages),
            "extraction": self.extraction,
            "catalogues": len(found),
            "sha256": digest.hexdigest(),
        }

    def catalogs(self, name: str = "…") -> list[Path]:
        """The catalogues. Raises UserError, with what to type for the dataset `name`, where there are none."""
        found = [path for _, path in catalogs(self.languages, self.folders)]
        if not found:
            raise UserError(
                f"This text is that of the messages of programs in the languages {' '.join(self.languages)}, and no "
                f"program here brings any: there is no file {self.folders[0]}/{self.languages[0]}/LC_MESSAGES/*.mo. "
                f'To give another text of that language, type: make data DATASET={name} FILES="train=…"'
            )
        return found

    def read(self) -> Iterator[Rows]:
        """One text, from which the splits are to be taken. Raises UserError where there are no catalogues."""
        yield Rows(None, catalog_documents(self.catalogs()))


def catalogs(languages: Iterable[str], folders: Iterable[Path]) -> list[tuple[str, Path]]:
    """The catalogues of languages: their names, `nb/LC_MESSAGES/grep.mo`, and their files, in an order of names."""
    found: dict[str, Path] = {}
    for folder, language in itertools.product(folders, languages):
        for path in filter(Path.is_file, (folder / language / "LC_MESSAGES").glob("*.mo")):
            found.setdefault(path.relative_to(folder).as_posix(), path)
    return sorted(found.items())


def catalog_documents(paths: Iterable[Path]) -> Iterator[str]:
    """Messages of some words, a line each, joined to documents catalogue by catalogue; none occurs twice."""
    seen: set[str] = set()

    def lines(path: Path) -> Iterator[str]:
        for message in translations(path):
            line = " ".join(message.split())
            letters = sum(map(str.isalpha, line))
            # words for the most part, and not names, options or fields to be filled in
            is_text = len(message.split()) >= _FEWEST_WORDS and letters >= 0.75 * len(line.replace(" ", ""))
            if is_text and line not in seen:
                seen.add(line)
                yield line

    for path in paths:
        yield from joined(lines(path))


def translations(path: Path) -> Iterator[str]:
    """The translated messages of a catalogue (a .mo file), each form of a plural by itself. UserError where the file is
    none. (Babel and the standard library fail on older catalogues.)"""
    try:
        pairs = list(_pairs(path.read_bytes()))
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
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(data[:4])
    if order is None:
        raise ValueError("it does not begin as one")
    count, *tables = struct.unpack_from(f"{order}3I", data, 8)
    for index in range(count):
        pair = []
        for table in tables:
            length, start = struct.unpack_from(f"{order}2I", data, table + 8 * index)
            if start + length > len(data):
                raise ValueError("it is cut off")
            pair.append(data[start : start + length])
        yield pair[0], pair[1]
