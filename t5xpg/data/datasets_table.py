"""The datasets that are known by name, and where their text comes from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from t5xpg.data import code_text, documentation_text
from t5xpg.data.installed_packages import (
    CODE_PACKAGES,
    DOCUMENTATION_PACKAGES,
    SourceFile,
    site_packages,
    source_files,
)
from t5xpg.data.lines import BadLines
from t5xpg.data.manifest import SPLITS
from t5xpg.files import sha256_of_file


@dataclass(frozen=True)
class Rows:
    """The rows of one split, in order; `split` None: one text from which the splits are to be taken.

    `total` is their number where it is known.
    """

    split: str | None
    texts: Iterable[str]
    total: int | None = None


class Source(Protocol):
    """Where a dataset's text comes from."""

    def describe(self) -> dict[str, Any]:
        """What identifies the text, as JSON; an export of the same description is up to date."""
        ...

    def read(self) -> Iterator[Rows]:
        """The rows of each split. Raises UserError where the text cannot be had."""
        ...


@dataclass(frozen=True)
class LocalFiles:
    """The user's files: split to paths, or None to paths (see `local_files.parse_files`).

    Lines that cannot be used go into `left_out`; without it they are errors.
    """

    files: Mapping[str | None, list[Path]]
    left_out: BadLines | None = None

    def describe(self) -> dict[str, Any]:
        """Paths as given, sizes and SHA-256 of the files."""
        return {
            "kind": "files",
            "files": {
                split or "all": [
                    {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256_of_file(path)} for path in paths
                ]
                for split, paths in self.files.items()
            },
        }

    def read(self) -> Iterator[Rows]:
        """The rows of the files, one file behind the other."""
        from t5xpg.data.local_files import texts  # imports zstandard, which the other sources do without

        for split in (None, *SPLITS):
            if paths := self.files.get(split):
                yield Rows(split, (text for path in paths for text in texts(path, self.left_out)))


@dataclass(frozen=True)
class InstalledText:
    """Text from the files of installed packages.

    `extraction` counts changes to how it is read, so that exports of an earlier way are not taken for up to date.
    """

    packages: Mapping[str, str]
    documents: Callable[[Iterable[SourceFile]], Iterator[str]]
    extraction: int
    site: Path = field(default_factory=site_packages)

    def describe(self) -> dict[str, Any]:
        """Packages and versions."""
        return {"kind": "installed packages", "packages": dict(self.packages), "extraction": self.extraction}

    def read(self) -> Iterator[Rows]:
        """One text, from which the splits are to be taken."""
        yield Rows(None, self.documents(source_files(self.packages, self.site)))


@dataclass(frozen=True)
class HuggingFace:
    """A dataset of the Hugging Face hub at one revision, with a column "text" and the three splits."""

    path: str
    configuration: str
    revision: str

    def describe(self) -> dict[str, Any]:
        """Path, configuration, revision."""
        return {
            "kind": "hugging face",
            "path": self.path,
            "configuration": self.configuration,
            "revision": self.revision,
        }

    def read(self) -> Iterator[Rows]:
        """The rows of each split. Raises UserError where there is no network and no copy in the cache of `datasets`."""
        from t5xpg.data.hugging_face import load_splits

        for split, rows in load_splits(self.path, self.configuration, self.revision).items():
            yield Rows(split, rows, len(rows))


@dataclass(frozen=True)
class Dataset:
    """A named dataset; `sha256` is that of each split of its full export, where it is one for all machines."""

    source: Source
    sha256: Mapping[str, str] = field(default_factory=dict)


def built_in() -> dict[str, Dataset]:
    """The datasets known by name."""
    return {
        "pydocs": Dataset(
            InstalledText(DOCUMENTATION_PACKAGES, documentation_text.documents, extraction=2),
            sha256={
                "train": "33c174e3192786a0969431c6248ac335c6425f2ebcd33a35cfd91448abf6eee6",
                "validation": "474545accdfa55528668a27598e3a212457e1dda9f7c88915fc78139c2deb1fb",
                "test": "a343e96b3098c3a4e6e5b805a3591e698bba8deb9a62e8fb93e548cddf0017d1",
            },
        ),
        "pycode": Dataset(
            InstalledText(CODE_PACKAGES, code_text.documents, extraction=1),
            sha256={
                "train": "6f88052d2a28cffa310f84fce9ed1956f7a38042f09bf64245064e6341e7e930",
                "validation": "5135dcfeff3567614178e3e62efb9757db1d6f9f4d9c6ad1f65e46450fd6f683",
                "test": "f2ab8db0100719dc0ade26d3846b2d3070088aec2ab50a94f658bef3dc14c04d",
            },
        ),
        "wikitext": Dataset(
            HuggingFace("Salesforce/wikitext", "wikitext-103-raw-v1", "b08601e04326c79dfdd32d625aee71d232d685c3")
        ),
    }


def content_hash(text: str) -> int:
    """64 bits of the SHA-256 of a text: the same everywhere."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", errors="replace")).digest()[:8], "big")
