"""Sources of the text of datasets: files, Python packages, the Hugging Face hub."""

import dataclasses
import hashlib
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeAlias

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import sha256_of_file
from t5xpg.data.text.held_out import HeldOut, content_hash
from t5xpg.data.text.labelled import LABELLED, PAIRS, TEXT
from t5xpg.data.text.lines import LeftOut
from t5xpg.data.text.local_records import parts_of, records
from t5xpg.data.text.manifest import SPLITS, split_order
from t5xpg.data.text.wheels import SourceFile, Wheel, source_files, wheels_directory

BUILT_IN_MIN_CHARACTERS = 101  # of the texts of datasets that are known by name
_PLAIN = re.compile(r"[\w*?\[\]!./-]+")
_BEGINNING = re.compile(r"([a-z0-9]+)\*")
_SHOWN = 30  # characters of patterns in a dataset's name
_DIGITS = 8  # of their digest


@dataclass(frozen=True)
class Selection:
    """Patterns of names, of which one must match: `*` is any characters, also `/`; `?` is one; `[ab]` is a or b."""

    patterns: tuple[str, ...]

    @classmethod
    def parse(cls, option: str) -> "Selection":
        """The patterns of SELECT=: words as a shell would write them. Their order does not matter."""
        expected = "Expected names or patterns, SELECT='absl/* rich/*'."
        try:
            patterns = sorted(set(shlex.split(option)))
        except ValueError as error:
            raise UserError(f"SELECT={option}: {error}. {expected}") from None
        if not patterns:
            raise UserError(f"SELECT names nothing. {expected}")
        return cls(tuple(patterns))

    def matches(self, name: str) -> bool:
        """True if a pattern matches a file's name, which includes its folders, with slashes."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def require_any(self, corpus: str, names: Collection[str]) -> None:
        """Raise UserError, with the nearest names, if a pattern matches none of the `names` of a corpus."""
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                folders = {f"{parent}/*" for name in names for parent in PurePosixPath(name).parents if parent.name}
                close = nearest(pattern, {*names, *folders})
                if close.startswith(" Known"):  # of all names, too many to be shown
                    close = nearest(pattern, {PurePosixPath(name).parts[0] for name in names if name})
                raise UserError(f"SELECT: no file of {corpus} matches {pattern!r}.{close}")

    @property
    def suffix(self) -> str:
        """The ending of the dataset's name: `a` for `a*`; otherwise a readable part of the patterns, and their digest.
        No two selections have the same ending, even on file systems that ignore case."""
        if beginning := _BEGINNING.fullmatch(str(self)):
            return beginning[1]
        readable = re.sub(r"[^A-Za-z0-9]+", "_", str(self)).strip("_")[:_SHOWN].strip("_")
        digest = hashlib.sha256(str(self).encode("utf-8", errors="backslashreplace")).hexdigest()[:_DIGITS]
        return "_".join(filter(None, (readable, digest)))

    def __str__(self) -> str:
        """The patterns as `parse` reads them: wildcards need no quotes, as only `shlex.split` reads them."""
        return " ".join(word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in self.patterns)


# A text, or for a record the text of each field.
Row: TypeAlias = str | tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """The rows of one split, and their number if known; `split` None: a source whose splits are made later."""

    split: str | None
    texts: Iterable[Row]
    total: int | None = None


class Source(Protocol):
    """A source of a dataset's text."""

    def describe(self) -> dict[str, Any]:
        """The identity of the text as JSON; an export of the same description is up to date."""

    def read(self) -> Iterator[Rows]:
        """The rows of each split. Raises UserError if the text is not available."""


@dataclass(frozen=True)
class LocalFiles:
    """The user's files, by split. left_out: skips malformed lines or not, and counts them. fields: name in the
    export to name in the files. selection: the patterns that chose the files, and the dataset's name."""

    files: Mapping[str | None, list[Path]]
    left_out: LeftOut
    fields: Mapping[str, str]
    selection: tuple[Selection, str] | None = None

    def describe(self) -> dict[str, Any]:
        """Fields; paths as given, sizes and SHA-256 of the files."""

        def described(path: Path) -> dict[str, Any]:
            return {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256_of_file(path)}

        files = {split or "all": list(map(described, paths)) for split, paths in self.files.items()}
        fields = {} if tuple(self.fields) == TEXT else {"fields": dict(self.fields)}
        chosen = {} if self.selection is None else selection_facts(*self.selection)
        return {"kind": "files", **fields, **chosen, "files": files}

    def select(self, selection: Selection, corpus: str) -> "LocalFiles":
        """The text of the files whose names, without folders, match. corpus: the name of the whole dataset."""
        selection.require_any("FILES", [path.name for paths in self.files.values() for path in paths])
        chosen = {
            split: [path for path in paths if selection.matches(path.name)] for split, paths in self.files.items()
        }
        files = {split: paths for split, paths in chosen.items() if paths}
        return dataclasses.replace(self, files=files, selection=(selection, corpus))

    def read(self) -> Iterator[Rows]:
        names, several = tuple(self.fields.values()), PAIRS[1] in self.fields
        answer = self.fields.get(PAIRS[1] if several else LABELLED[1], "")
        parts = {split: parts_of(paths, names) for split, paths in self.files.items()}
        for split in sorted(parts, key=split_order):
            if split_parts := parts[split]:
                rows = (
                    record for part in split_parts for record in records(part, names, self.left_out, answer, several)
                )
                yield Rows(split, (text for (text,) in rows) if names == TEXT else rows)


@dataclass(frozen=True)
class PackageText:
    """Text from the files of Python packages. extraction: counts changes to how the text is read."""

    wheels: Mapping[str, Wheel]
    documents: Callable[[Iterable[SourceFile]], Iterator[Row]]
    extraction: int
    folder: Path = field(default_factory=wheels_directory)

    def describe(self) -> dict[str, Any]:
        versions = {name: wheel.version for name, wheel in self.wheels.items()}
        return {"kind": "packages", "packages": versions, "extraction": self.extraction}

    def read(self) -> Iterator[Rows]:
        yield Rows(None, self.documents(source_files(self.wheels, self.folder)))

    def select(self, selection: Selection, corpus: str) -> "SelectedText":
        """The text of files whose paths in site-packages, `absl/flags/_flag.py`, match. corpus: the whole's name."""
        return SelectedText(self, selection, corpus)


@dataclass(frozen=True)
class SelectedText:
    """The texts of a `PackageText` from chosen files, each in the same split as in the whole: no text that a model
    of the whole was trained on is held out here, and the other way round."""

    whole: PackageText
    selection: Selection
    corpus: str

    def describe(self) -> dict[str, Any]:
        return {**self.whole.describe(), **selection_facts(self.selection, self.corpus)}

    def read(self) -> Iterator[Rows]:
        """The chosen rows of each split; test is left out if it would be empty."""
        names: list[str] = []

        def files() -> Iterator[SourceFile]:
            for file in source_files(self.whole.wheels, self.whole.folder):
                names.append(file.path)
                yield file

        # each document comes before the next file is read: it is from the file named last
        documents = [
            (content_hash(text), text if self.selection.matches(names[-1]) else None)
            for text in self.whole.documents(files())
            if isinstance(text, str) and len(text) >= BUILT_IN_MIN_CHARACTERS
        ]
        self.selection.require_any(self.corpus, names)
        held_out = HeldOut.from_hashes(content for content, _ in documents)
        texts: dict[str, list[str]] = {split: [] for split in SPLITS}
        for content, text in documents:
            if text is not None:
                texts[held_out.split_of(content)].append(text)
        for split in ("train", "validation"):
            if not texts[split]:
                raise UserError(
                    f"SELECT={self.selection}: of the {sum(map(len, texts.values()))} documents that it chooses of "
                    f"{self.corpus}, none is in {split}. Choose more files."
                )
        for split, chosen in texts.items():
            if chosen:
                yield Rows(split, chosen, len(chosen))


FILE_SOURCES = (LocalFiles, PackageText)  # their text is in files with names


@dataclass(frozen=True)
class HuggingFace:
    """A dataset of the Hugging Face hub at one revision, or of a local folder laid out like one, with a column "text"
    and three splits. A `streamed` one is read as it comes, without a copy, and may have only a train split."""

    path: str
    configuration: str | None
    revision: str | None
    streamed: bool = False

    def describe(self) -> dict[str, Any]:
        """The arguments; of a local folder, also the SHA-256 of its files but for hidden ones."""
        names = ((path, path.relative_to(self.path)) for path in sorted(Path(self.path).rglob("*")) if path.is_file())
        files = {str(name): sha256_of_file(path) for path, name in names if not str(name).startswith(".")}
        return {
            "kind": "hugging face",
            "path": self.path,
            "configuration": self.configuration,
            "revision": self.revision,
            **({"streamed": True} if self.streamed else {}),
            **({"files": files} if files else {}),
        }

    def read(self) -> Iterator[Rows]:
        """The rows of each split. Raises UserError without a network and a copy in the cache of `datasets`."""
        from t5xpg.data.text import hugging_face

        for split, rows in hugging_face.splits(self.path, self.configuration, self.revision, self.streamed).items():
            yield Rows(split, *rows)


def selection_facts(selection: Selection, corpus: str) -> dict[str, str]:
    """The part of a source's description that identifies a selection."""
    return {"of": corpus, "select": str(selection)}
