"""The manifest of an exported dataset: its source, its filter, its splits.

An export is a folder `<data folder>/<name>/` with one `<split>.jsonl` a split and a `manifest.json`. A line of a split
is exactly `{"text": "…"}` as `json.dumps(…, ensure_ascii=False)` writes it, in UTF-8, or for records
`{"en": "…", "de": "…"}` with the fields of the manifest: see `canonical_record`. Several answers are a list.
"""

import contextlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any

from t5xpg.base import digests
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import checked, read_json, remove_abandoned, sha256_of_file, size_text, write_json
from t5xpg.data.text.labelled import TEXT
from t5xpg.data.text.lines import SURROGATE, Answers

SPLITS = ("train", "validation", "test")
MANIFEST = "manifest.json"
_FORMAT = 1
_SHOWN = 40  # characters of a wrong value in a message
_KINDS = {"name": str, "source": dict, "filter": dict, "limit": int | None, "rows_read": int, "splits": dict}
_OPTIONAL = {"max_bytes": int, "fields": list, "several_answers": int}
_KINDS_OF_SPLIT = {"documents": int, "bytes": int, "sha256": str}


@dataclass(frozen=True)
class SplitRecord:
    """One file of an export: its lines, bytes and SHA-256 (hex)."""

    documents: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The record of an export: the source of the text, the rule for rows (`filter`), the most that a split may hold
    (`limit` rows, `max_bytes` of text), the number of rows read, the `fields` of a line, and the number of rows whose
    "targets" are a list of `several_answers`."""

    name: str
    source: Mapping[str, Any]
    filter: Mapping[str, Any]
    limit: int | None
    rows_read: int
    splits: Mapping[str, SplitRecord]
    max_bytes: int | None = None
    fields: tuple[str, ...] = TEXT
    several_answers: int = 0

    def to_json(self) -> dict[str, Any]:
        """The contents of manifest.json."""
        return {
            "format": _FORMAT,
            "name": self.name,
            "source": dict(self.source),
            "filter": dict(self.filter),
            "limit": self.limit,
            **({} if self.max_bytes is None else {"max_bytes": self.max_bytes}),
            "rows_read": self.rows_read,
            **({} if self.fields == TEXT else {"fields": list(self.fields)}),
            **({"several_answers": self.several_answers} if self.several_answers else {}),
            "splits": {name: vars(split) for name, split in self.splits.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> "Manifest":
        """The inverse of `to_json`. Raises ValueError, saying what is wrong, for any other value."""
        if checked(value, {"format": int})["format"] != _FORMAT:
            raise ValueError(f"format {value['format']}")
        entries = checked(value, _KINDS | {name: kind for name, kind in _OPTIONAL.items() if name in value})
        splits, fields = entries["splits"], tuple(entries.get("fields", TEXT))
        if not splits or not all(isinstance(split, str) and split.isidentifier() for split in splits):
            raise ValueError(f"splits are {', '.join(map(repr, splits)) or 'none'}")
        if not fields or not all(isinstance(field, str) and field.isidentifier() for field in fields):
            raise ValueError(f"fields is {str(fields)[:_SHOWN]!r}")
        records = {name: SplitRecord(**checked(split, _KINDS_OF_SPLIT)) for name, split in splits.items()}
        return cls(**entries | {"splits": records, "fields": fields})

    @property
    def identity(self) -> dict[str, str]:
        """SHA-256 of each split: exports with the same identity hold the same text in the same order."""
        return {name: split.sha256 for name, split in self.splits.items()}

    def files_are_whole(self, folder: Path) -> bool:
        """True if every split's file is, by its digest, the one that was exported."""
        return not digests.differences(folder, self._files)

    def was_edited(self, folder: Path) -> bool:
        """True if a split's file is not the one that was exported, and was not cut off: its last line is whole."""
        files = {split_path(folder, split): record for split, record in self.splits.items()}
        changed = [path for path, one in files.items() if path.is_file() and sha256_of_file(path) != one.sha256]
        return any(map(_ends_with_line, changed))

    def check_files(self, folder: Path) -> None:
        """Raise UserError, with the command to type, if a split's file is not the one that was exported."""
        digests.check(
            folder,
            self._files,
            f"The text of {folder.name} is not as it was exported",
            f"To export it again, type: {self.command(force=True)}  "
            "(a text that you changed yourself: export it under a name of its own, with FILES=)",
        )

    @property
    def _files(self) -> dict[str, str]:
        return {split_path(Path(), name).name: split.sha256 for name, split in self.splits.items()}

    def command(self, force: bool = False) -> str:
        """The command to type to export this text."""
        source = self.source
        words = [f"make data DATASET={self.name}"]
        if source.get("kind") == "files":
            words += _files_options(source)
        if source.get("kind") == "hugging face" and source.get("streamed"):
            keys = {"HUB": "path", "CONFIG": "configuration", "REVISION": "revision"}
            words += [f"{name}={shlex.quote(str(source[key]))}" for name, key in keys.items() if source.get(key)]
        minimum = self.filter.get("min_characters", 1)
        is_users = source.get("kind") == "files" or any(word.startswith("HUB=") for word in words)
        words += [f"MIN_CHARACTERS={minimum}"] if minimum > 1 and is_users else []
        words += ["ON_BAD_LINE=skip"] if self.filter.get("on_bad_line") == "skip" else []
        return " ".join([*words, *self.limits, *(["FORCE=1"] if force else [])])

    @property
    def limits(self) -> list[str]:
        """The limits as options: LIMIT= and MAX_MB=."""
        limit = [] if self.limit is None else [f"LIMIT={self.limit}"]
        return limit + ([] if self.max_bytes is None else [f"MAX_MB={self.max_bytes / 1e6:.12g}"])

    def summary(self) -> str:
        """One line: the documents and the size of each split."""
        kind = "documents" if self.fields == TEXT else "records"
        splits = self.splits.items()
        return ", ".join(f"{name} {split.documents:,} {kind} {size_text(split.bytes)}" for name, split in splits)


def _ends_with_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() == b"\n"


def canonical_line(text: str) -> bytes:
    """`canonical_record` of one text: `{"text": "…"}`."""
    return _encoded(f'{{"text": {encode_basestring(text)}}}\n')  # called for every row of most exports


def canonical_record(values: Sequence[str], fields: Sequence[str]) -> bytes:
    """The line of an export for the texts of its fields, with its line end. Escapes are only `\\"`, `\\\\`, `\\b`,
    `\\f`, `\\n`, `\\r`, `\\t` and `\\u00XX` for other control characters. Lone surrogates become U+FFFD."""

    def written(text: str) -> str:
        several = isinstance(text, Answers) and f"[{', '.join(map(encode_basestring, text.all))}]"
        return several or encode_basestring(text)

    pairs = [f"{encode_basestring(name)}: {written(text)}" for name, text in zip(fields, values, strict=True)]
    return _encoded(f"{{{', '.join(pairs)}}}\n")


def texts_of_line(line: bytes) -> list[str]:
    """The texts of all fields in a line of an export, one for each answer."""
    values = json.loads(line).values()
    return [text for value in values for text in (value if isinstance(value, list) else [value])]


def _encoded(line: str) -> bytes:
    try:
        return line.encode("utf-8")
    except UnicodeEncodeError:
        return SURROGATE.sub("\ufffd", line).encode("utf-8")


def split_order(split: str | None) -> int:
    """The place of a split among those of an export: the usual ones first, others as they were named."""
    return SPLITS.index(split) if split in SPLITS else len(SPLITS)


def split_path(folder: Path, split: str) -> Path:
    """The file of a split inside an export's folder."""
    return folder / f"{split}.jsonl"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json into an export's folder."""
    write_json(folder / MANIFEST, manifest.to_json())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an export's folder. Raises UserError if it is missing or cannot be read."""
    path = folder / MANIFEST
    if not path.is_file():
        known = find_manifests(folder.parent)
        raise UserError(
            f"There is no exported dataset {folder.name!r} in {folder.parent}: "
            f"`make data DATASET={folder.name}` makes one.{nearest(folder.name, known)}"
        )
    try:
        return Manifest.from_json(read_json(path))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not a manifest of this version ({error}): "
            f"`make data DATASET={folder.name} FORCE=1` makes it anew."
        ) from None


def find_manifests(data_dir: Path) -> dict[str, Path]:
    """The folders of all exports below `data_dir` by name, sorted. Nothing is read.

    An export that a killed process had moved aside, to replace it, is put back first.
    """
    remove_abandoned(data_dir)
    return {path.parent.name: path.parent for path in sorted(data_dir.glob(f"[!.]*/{MANIFEST}"))}


def _files_options(source: Mapping[str, Any]) -> list[str]:
    """FIELDS= and FILES= of an export of the user's files, as far as the record has them; paths are as typed."""
    words, paths = [], []
    with contextlib.suppress(TypeError, KeyError, AttributeError):
        fields = [name if name == column else f"{name}={column}" for name, column in source.get("fields", {}).items()]
        words += [f"FIELDS={','.join(fields)}"] if fields else []
        for split, entries in source["files"].items():
            first, *more = [shlex.quote(str(entry["path"])) for entry in entries] or [""]
            paths += [first if split == "all" or not first else f"{split}={first}", *more]
    return words + ([f"FILES={one_word(' '.join(filter(None, paths)))}"] if any(paths) else [])


def one_word(text: str) -> str:
    """The text in quotes, as one word of a shell."""
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'
