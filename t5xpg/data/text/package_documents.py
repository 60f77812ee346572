"""Documents from the Python files of Python packages: source code, and the prose of docstrings."""

import ast
import hashlib
import itertools
import re
import warnings
from collections.abc import Iterable, Iterator

from t5xpg.data.text.wheels import SourceFile

# A piece this long ends before the next top-level statement; one of the second length, also before an inner function.
_CODE_CHARACTERS = 2000
_LONG_DOCUMENT_CHARACTERS = 8000
_MAX_LINE_CHARACTERS = 300  # longer lines are data


def code_documents(files: Iterable[SourceFile]) -> Iterator[str]:
    """Pieces of source files at top-level statements, without licence headers; no piece occurs twice."""
    seen: set[bytes] = set()
    for file in files:
        # without the comments that a file starts with (licence, encoding)
        lines = itertools.dropwhile(lambda line: not line.strip() or line.startswith("#"), file.text.split("\n"))
        for piece in _pieces(lines):
            key = hashlib.sha256(piece.encode("utf-8", errors="replace")).digest()
            letters, visible = _letters_and_visible(piece)
            # not a table of data
            is_code = letters >= 0.6 * visible and max(map(len, piece.split("\n"))) <= _MAX_LINE_CHARACTERS
            if is_code and key not in seen:
                seen.add(key)
                yield piece


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    piece: list[str] = []
    size, previous = 0, ""
    for line in lines:
        # a piece may start with a line that follows an empty one
        is_outside = line[:1] not in ("", " ", "\t", ")", "]", "}")
        is_inner = size >= _LONG_DOCUMENT_CHARACTERS and line.lstrip().startswith(("def ", "async def ", "class ", "@"))
        if not previous.strip() and size >= _CODE_CHARACTERS and (is_outside or is_inner):
            yield "\n".join(piece).strip("\n")
            piece, size = [], 0
        piece.append(line.rstrip(" \t"))
        size += len(line) + 1
        previous = line
    yield "\n".join(piece).strip("\n")


def _letters_and_visible(text: str) -> tuple[int, int]:
    return len(re.findall("[A-Za-z]", text)), sum(not character.isspace() for character in text)


_DOCUMENTATION_CHARACTERS = 1500  # texts of one file are joined until a document has as many
_TEXT_CHARACTERS = 100  # a docstring by itself is longer
_REPEATABLE_CHARACTERS = 40  # a shorter paragraph may be repeated ("Returns:"); a longer one is taken once
_LICENCE = re.compile(r"Licensed under|Permission is hereby granted|All rights reserved|Copyright|SPDX-", re.IGNORECASE)


def documentation_documents(files: Iterable[SourceFile]) -> Iterator[str]:
    """Documents of prose, in the order of the files; no paragraph occurs twice, except short ones."""
    seen: set[bytes] = set()
    for file in files:
        yield from _joined(_prose(file, seen))


def texts_and_packages(files: Iterable[SourceFile]) -> Iterator[tuple[str, str]]:
    """The prose of each longer docstring, and its package; no paragraph occurs twice, except short ones."""
    seen: set[bytes] = set()
    for file in files:
        package = file.path.partition("/")[0].removesuffix(".py")
        yield from ((prose, package) for prose in _prose(file, seen) if len(prose) > _TEXT_CHARACTERS)


def _prose(file: SourceFile, seen: set[bytes]) -> Iterator[str]:
    return (prose for docstring in _docstrings(file.text) if (prose := _new_prose(docstring, seen)))


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """Yields texts joined to documents of a minimum length."""
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
    groups: list[list[str]] = [[]]
    _collect(tree, groups[0], groups)
    return [docstring for group in groups for docstring in group]


def _collect(node: ast.AST, group: list[str], groups: list[list[str]]) -> None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node, clean=False)
        if docstring is not None:
            group.append(docstring)
    for child in getattr(node, "body", []):
        if isinstance(child, ast.ClassDef):
            groups.append([])
            _collect(child, groups[-1], groups)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.If | ast.Try | ast.With):
            _collect(child, group, groups)


def _new_prose(docstring: str, seen: set[bytes]) -> str:
    """The cleaned docstring without paragraphs that are licences, examples, tables, or already in `seen`."""
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
    # headings of sections without content
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
    """True for mostly letters and spaces, and no interactive example."""
    if ">>>" in paragraph or "\n$ " in f"\n{paragraph}":
        return False
    letters, visible = _letters_and_visible(paragraph)
    # tables and arrays have few letters; code has few and long words
    return letters >= 0.75 * visible and visible <= 9 * len(paragraph.split())
