"""The installed packages whose files the embedded datasets are read from.

Each is a pure-Python wheel (the same files on every platform and Python) that every lock in `requirements/` pins to one
version. Files are found by the package's record of installation and read as bytes; nothing is imported, and the
standard library, which differs from one Python to the next, is never read.
"""

from __future__ import annotations

import ast
import codecs
import csv
import hashlib
import importlib.metadata
import re
import struct
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from t5xpg.base.errors import UserError

# Text of prose quality; the same versions as in requirements/*.txt (a test compares).
DOCUMENTATION_PACKAGES: Mapping[str, str] = {
    "absl-py": "2.5.1",
    "beartype": "0.22.9",
    "click": "8.5.1",
    "clu": "0.0.12",
    "datasets": "5.2.0",
    "etils": "1.15.0",
    "flax": "0.12.8",
    "fsspec": "2026.9.0",
    "gin-config": "0.5.0",
    "huggingface-hub": "2.4.0",
    "jax": "0.10.2",
    "joblib": "1.6.0",
    "keras": "3.15.1",
    "ml-collections": "1.1.0",
    "narwhals": "2.28.0",
    "nltk": "3.10.4",
    "optax": "0.2.8",
    "orbax-checkpoint": "0.12.8",
    "pydantic": "2.14.3",
    "pyglove": "0.4.5",
    "rich": "15.0.0",
    "seqio": "0.0.20",
    "t5": "0.9.4",
    "tensorflow-datasets": "4.9.10",
    "treescope": "0.1.10",
    "urllib3": "2.8.0",
}

# Source code in one house style or near it, about as much as the documentation.
CODE_PACKAGES: Mapping[str, str] = {
    name: DOCUMENTATION_PACKAGES[name]
    for name in (
        "absl-py", "click", "clu", "datasets", "etils", "flax", "fsspec", "gin-config", "huggingface-hub", "joblib",
        "ml-collections", "optax", "orbax-checkpoint", "pydantic", "pyglove", "rich", "seqio", "t5", "treescope",
        "urllib3",
    )
}  # fmt: skip

# tests, copies of other packages, generated code
_SKIPPED_PATHS = re.compile(
    r"(^|/)(tests?|testing|test_[^/]*|[^/]*_tests?|conftest|_?vendor|vendored|[^/]*_pb2|[^/]*_pb2_grpc|_?version)"
    r"(/|\.py$)"
)


@dataclass(frozen=True)
class SourceFile:
    """One Python file: the path inside site-packages, with slashes, and its text with `\\n` line ends."""

    path: str
    text: str


def site_packages() -> Path:
    """Where this interpreter's packages are installed."""
    return Path(sysconfig.get_path("purelib"))


def source_files(packages: Mapping[str, str], site: Path) -> Iterator[SourceFile]:
    """The Python files of the packages (name to version) under `site`, in an order that is the same everywhere.

    Left out are tests, vendored packages, generated code, and files in other encodings than UTF-8.
    Raises UserError where a package is missing, has another version, or has no record of its files.
    """
    for _, paths in sorted(_recorded_files(packages, site).items()):
        for path in paths:
            try:
                text = (site / path).read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue  # a file in another encoding: test data of encodings
            except FileNotFoundError:
                raise UserError(f"{site / path} was installed but is gone: install the packages again.") from None
            yield SourceFile(path, text.replace("\r\n", "\n").replace("\r", "\n"))


def _recorded_files(packages: Mapping[str, str], site: Path) -> dict[str, list[str]]:
    installed = {
        _normalised(distribution.metadata["Name"] or ""): distribution
        for distribution in importlib.metadata.distributions(path=[str(site)])
    }
    wrong: list[str] = []
    files: dict[str, list[str]] = {}
    for name, version in packages.items():
        distribution = installed.get(name)
        if distribution is None:
            wrong.append(f"{name} {version} is not installed")
        elif distribution.version != version:
            wrong.append(f"{name} is {distribution.version} instead of {version}")
        elif (record := distribution.read_text("RECORD")) is None:
            wrong.append(f"{name} has no record of its files")
        else:
            # not `distribution.files`: newer Pythons leave out of it what is gone
            paths = {row[0] for row in csv.reader(record.splitlines()) if row}
            files[name] = sorted(path for path in paths if _is_wanted(path))
    if wrong:
        raise UserError(
            f"The embedded text is read from installed packages at the versions of requirements/: {'; '.join(wrong)} "
            f"(in {site}). Install the lock again (`make install`), or give the text yourself with FILES=…"
        )
    return files


def _is_wanted(path: str) -> bool:
    return path.endswith(".py") and not path.startswith("..") and not _SKIPPED_PATHS.search(path)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# A file is cut before a top-level statement once a piece has this many characters, and before a method or an inner
# function once it has the second number.
_CODE_CHARACTERS = 2000
_LONG_DOCUMENT_CHARACTERS = 8000
# longer lines are data
_MAX_LINE_CHARACTERS = 300


def code_documents(files: Iterable[SourceFile]) -> Iterator[str]:
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
        if not previous.strip() and size >= _CODE_CHARACTERS and _may_start(line, size):
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


# Docstrings of one file are joined until a document has this many characters.
_DOCUMENTATION_CHARACTERS = 1500
# A docstring by itself is longer.
_TEXT_CHARACTERS = 100
# a shorter paragraph may be repeated ("Returns:", "A tensor."); a longer one is taken once
_REPEATABLE_CHARACTERS = 40

_LICENCE = re.compile(r"Licensed under|Permission is hereby granted|All rights reserved|Copyright|SPDX-", re.IGNORECASE)


def documentation_documents(files: Iterable[SourceFile]) -> Iterator[str]:
    """Documents of prose, in the order of the files; no paragraph of some length occurs twice."""
    seen: set[bytes] = set()
    for file in files:
        yield from _joined(_prose(file, seen))


def texts_and_packages(files: Iterable[SourceFile]) -> Iterator[tuple[str, str]]:
    """The prose of each docstring of some length, and the package that it is of; no paragraph occurs twice."""
    seen: set[bytes] = set()
    for file in files:
        package = file.path.partition("/")[0].removesuffix(".py")
        yield from ((prose, package) for prose in _prose(file, seen) if len(prose) > _TEXT_CHARACTERS)


def _prose(file: SourceFile, seen: set[bytes]) -> Iterator[str]:
    """The docstrings of a file as far as they are prose, without what was seen."""
    return (prose for docstring in _docstrings(file.text) if (prose := _new_prose(docstring, seen)))


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """Join texts to documents of some length."""
    parts: list[str] = []
    size = 0
    for text in texts:
        parts.append(text)
        size += len(text)
        if size >= _DOCUMENTATION_CHARACTERS:
            yield "\n".join(parts)
            parts, size = [], 0
    if parts:
        yield "\n".join(parts)


def _docstrings(source: str) -> list[str]:
    """The docstrings of a file: those of the module and its functions first, then those of each class."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes
            # syntax that is newer than the oldest supported Python is refused everywhere alike
            tree = ast.parse(source, feature_version=(3, 11))
    except (SyntaxError, ValueError):
        return []
    of_module: list[str] = []
    of_classes: list[list[str]] = []
    _collect(tree, of_module, of_classes)
    return of_module + [docstring for own in of_classes for docstring in own]


def _collect(node: ast.AST, group: list[str], of_classes: list[list[str]]) -> None:
    body = getattr(node, "body", [])
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body:
        first = body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            group.append(first.value.value)
    for child in body:
        if isinstance(child, ast.ClassDef):
            own: list[str] = []
            of_classes.append(own)
            _collect(child, own, of_classes)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.If | ast.Try | ast.With):
            _collect(child, group, of_classes)


def _new_prose(docstring: str, seen: set[bytes]) -> str:
    """The cleaned docstring without the paragraphs of licences, examples and tables, and without what was seen."""
    paragraphs = []
    for paragraph in _paragraphs(docstring):
        if _LICENCE.search(paragraph) or not _is_prose(paragraph):
            continue
        if len(paragraph) >= _REPEATABLE_CHARACTERS:
            key = hashlib.sha256(" ".join(paragraph.split()).encode("utf-8", errors="replace")).digest()
            if key in seen:
                continue
            seen.add(key)
        paragraphs.append(paragraph)
    # headings of sections whose content is gone
    while paragraphs and _is_heading(paragraphs[-1]):
        paragraphs.pop()
    kept = [p for i, p in enumerate(paragraphs) if not (_is_heading(p) and _is_heading(paragraphs[i + 1]))]
    # A paragraph is a line: a small model otherwise learns indentation first, and fills blanks with runs of spaces.
    text = "\n".join(" ".join(paragraph.split()) for paragraph in kept)
    return text if len(text) >= _REPEATABLE_CHARACTERS else ""


def _paragraphs(docstring: str) -> list[str]:
    """Paragraphs with their common indentation removed, without code blocks and interactive examples."""
    lines = [line.rstrip(" \t") for line in docstring.expandtabs().split("\n")]
    indents = [_indent(line) for line in lines[1:] if line]
    margin = min(indents, default=0)
    lines = [lines[0].lstrip(" ")] + [line[margin:] for line in lines[1:]]
    paragraphs: list[str] = []
    current: list[str] = []
    skip_fence = False
    skip_deeper: int | None = None  # the indentation of the line that announced a literal block
    for line in [*lines, ""]:
        stripped = line.strip(" ")
        if stripped.startswith(("```", "~~~")):
            skip_fence = not skip_fence
            stripped = ""
        elif skip_fence:
            continue
        if skip_deeper is not None and stripped:
            if _indent(line) > skip_deeper:
                continue
            skip_deeper = None
        if not stripped:
            if current:
                paragraphs.append("\n".join(current))
            current = []
            continue
        if stripped.startswith(".. "):
            # a directive: its body is code, a formula or a figure, but a note's is text
            if not re.match(r"\.\. (note|warning|tip|important|seealso|attention|hint)::", stripped):
                skip_deeper = _indent(line)
            continue
        if set(stripped) <= set("=-~^*_+#|: `\"'.") and len(stripped) > 2:
            continue  # underlines and rulers
        current.append(line)
        if stripped.endswith("::"):
            skip_deeper = _indent(line)
            current[-1] = line[:-1]
    return paragraphs


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _is_heading(paragraph: str) -> bool:
    return "\n" not in paragraph and paragraph.endswith(":") and len(paragraph) < _REPEATABLE_CHARACTERS


def _is_prose(paragraph: str) -> bool:
    """Mostly letters and spaces, and no interactive example."""
    if ">>>" in paragraph or "\n$ " in f"\n{paragraph}":
        return False
    visible = sum(1 for character in paragraph if not character.isspace())
    letters = sum(1 for character in paragraph if character.isascii() and character.isalpha())
    words = len(paragraph.split())
    # tables and arrays have few letters; code has few and long words
    return letters >= 0.75 * visible and visible <= 9 * words


# Where programs install their catalogues on Linux, and on macOS by its package managers.
FOLDERS = (
    Path("/usr/share/locale"),
    Path("/usr/local/share/locale"),
    Path("/opt/homebrew/share/locale"),
    Path("/opt/local/share/locale"),
)
# Messages of one catalogue are joined until a document has this many characters.
_CATALOG_CHARACTERS = 1500
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


def catalog_documents(paths: Iterable[Path]) -> Iterator[str]:
    """Messages of some words, a line each, joined to documents catalogue by catalogue; none occurs twice."""
    seen: set[str] = set()
    for path in paths:
        lines: list[str] = []
        for message in translations(path):
            line = " ".join(message.split())
            if line not in seen and _is_text(line):
                seen.add(line)
                lines.append(line)
                if sum(map(len, lines)) >= _CATALOG_CHARACTERS:
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
