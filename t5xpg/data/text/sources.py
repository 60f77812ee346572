"""Sources of the text of datasets: files, Python packages, the Hugging Face hub."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from t5xpg.base.files import sha256_of_file
from t5xpg.data.text.labelled import LABELLED, PAIRS, TEXT
from t5xpg.data.text.lines import LeftOutRows
from t5xpg.data.text.local_records import parts_of, records
from t5xpg.data.text.manifest import split_order
from t5xpg.data.text.wheels import SourceFile, Wheel, source_files, wheels_directory

BUILT_IN_MIN_CHARACTERS = 101  # of the texts of datasets that are known by name
# A text, or for a record the text of each field.
Row: TypeAlias = str | tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """The rows of one split, and their number if known; `split` None: a source whose splits are made later."""

    split: str | None
    texts: Iterable[Row]
    total: int | None = None


@dataclass(frozen=True)
class LocalFiles:
    """The user's files, by split. left_out: skips malformed lines or not, and counts them. fields: name in the
    export to name in the files."""

    files: Mapping[str | None, list[Path]]
    left_out: LeftOutRows
    fields: Mapping[str, str]

    def describe(self) -> dict[str, Any]:
        """Fields; paths as given, sizes and SHA-256 of the files."""

        def described(path: Path) -> dict[str, Any]:
            return {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256_of_file(path)}

        files = {split or "all": list(map(described, paths)) for split, paths in self.files.items()}
        fields = {} if tuple(self.fields) == TEXT else {"fields": dict(self.fields)}
        return {"kind": "files", **fields, "files": files}

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


# A source of a dataset's text. describe: the identity of the text as JSON; an export of the same description is up to
# date. read: the rows of each split; UserError if the text is not available.
Source: TypeAlias = LocalFiles | PackageText | HuggingFace
