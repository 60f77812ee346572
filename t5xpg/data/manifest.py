"""What an exported dataset is: where it came from, how it was filtered, what is in it.

An export is a folder `<data folder>/<name>/` with one `<split>.jsonl` a split and a `manifest.json`. A line of a split
is exactly `{"text": "…"}` as `json.dumps(…, ensure_ascii=False)` writes it, in UTF-8: see `canonical_line`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.errors import UserError, nearest
from t5xpg.files import read_json, write_json

SPLITS = ("train", "validation", "test")
MANIFEST = "manifest.json"
_FORMAT = 1
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class SplitRecord:
    """One file of an export: its lines, bytes and SHA-256 (hex)."""

    documents: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The record of an export.

    `source` says where the text came from (kind, revision or versions or digests), `filter` which rows were kept,
    `limit` how many rows a split was cut to, `rows_read` how many rows were looked at.
    """

    name: str
    source: Mapping[str, Any]
    filter: Mapping[str, Any]
    limit: int | None
    rows_read: int
    splits: Mapping[str, SplitRecord]

    def to_json(self) -> dict[str, Any]:
        """What manifest.json holds."""
        return {
            "format": _FORMAT,
            "name": self.name,
            "source": dict(self.source),
            "filter": dict(self.filter),
            "limit": self.limit,
            "rows_read": self.rows_read,
            "splits": {name: vars(split) for name, split in self.splits.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        if value["format"] != _FORMAT:
            raise ValueError(f"format {value['format']} instead of {_FORMAT}")
        return cls(
            name=value["name"],
            source=value["source"],
            filter=value["filter"],
            limit=value["limit"],
            rows_read=value["rows_read"],
            splits={name: SplitRecord(**split) for name, split in value["splits"].items()},
        )

    @property
    def identity(self) -> dict[str, str]:
        """SHA-256 of each split: exports with the same identity hold the same text in the same order."""
        return {name: split.sha256 for name, split in self.splits.items()}

    def files_are_whole(self, folder: Path) -> bool:
        """Whether every split's file is there with the recorded number of bytes."""
        return all(
            (path := split_path(folder, name)).is_file() and path.stat().st_size == split.bytes
            for name, split in self.splits.items()
        )

    def summary(self) -> str:
        """One line: documents and megabytes of each split."""
        return ", ".join(
            f"{name} {split.documents:,} documents {split.bytes / 1e6:.1f} MB" for name, split in self.splits.items()
        )


def canonical_line(text: str) -> bytes:
    """The line of an export for a text, with its line end.

    Escapes are only `\\"`, `\\\\`, `\\b`, `\\f`, `\\n`, `\\r`, `\\t` and `\\u00XX` for other control characters. Lone
    surrogates, which UTF-8 cannot hold, become U+FFFD.
    """
    return json.dumps({"text": _SURROGATE.sub("\ufffd", text)}, ensure_ascii=False).encode("utf-8") + b"\n"


def split_path(folder: Path, split: str) -> Path:
    """The file of a split inside an export's folder."""
    return folder / f"{split}.jsonl"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json into an export's folder."""
    write_json(folder / MANIFEST, manifest.to_json())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an export's folder. Raises UserError where there is none, or it cannot be read."""
    path = folder / MANIFEST
    if not path.is_file():
        known = find_manifests(folder.parent)
        raise UserError(
            f"There is no exported dataset {folder.name!r} in {folder.parent}: "
            f"`make data DATASET={folder.name}` makes one.{nearest(folder.name, known)}"
        )
    try:
        return Manifest.from_json(read_json(path))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a manifest of this version ({error}): "
            f"`make data DATASET={folder.name} FORCE=1` makes it anew."
        ) from None


def find_manifests(data_dir: Path) -> dict[str, Path]:
    """The folders of all exports below `data_dir` by name, sorted. Nothing is read."""
    if not data_dir.is_dir():
        return {}
    return {path.parent.name: path.parent for path in sorted(data_dir.glob(f"[!.]*/{MANIFEST}"))}
