"""The export of a dataset: its text as JSON lines by split, with a manifest."""

import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from t5xpg.base.digests import MEMORY
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import directory_atomically, json_object_if_any, remove_abandoned, room_for
from t5xpg.data.text.datasets import Dataset, built_in
from t5xpg.data.text.labelled import TEXT
from t5xpg.data.text.lines import LeftOutRows
from t5xpg.data.text.manifest import MANIFEST, SPLITS, Manifest, read_manifest, split_path, write_manifest
from t5xpg.data.text.sources import HuggingFace, LocalFiles
from t5xpg.data.text.splits import write_splits

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LONGEST_NAME = 100  # file names are made of it


def export_dataset(
    name: str,
    *,
    data_dir: Path,
    files: Mapping[str | None, list[Path]] | None = None,
    fields: Mapping[str, str] | None = None,
    hub: HuggingFace | None = None,
    limit: int | None = None,
    max_bytes: int | None = None,
    force: bool = False,
    on_bad_line: Literal["error", "skip"] = "error",
    min_characters: int | None = None,
    log: Callable[[str], None] = print,
) -> Manifest:
    """Write `data_dir/name/{train,validation,test}.jsonl` and its manifest.json, unless they are up to date.

    files (from `local_files.parse_files`), hub: replace the known source of `name`. fields (from
    `labelled.parse_fields`): those of records in the files. Rows without text are left out. min_characters: shorter
    texts, in the user's files or on the hub, are left out (None: no limit; datasets known by name have their own rule).
    limit, max_bytes (of UTF-8): export only the first rows of each split, or of a source without splits. on_bad_line:
    what to do with a line of the files that cannot be used; "skip" leaves it out. Rows left out are counted by reason,
    in the manifest and for the user. force: replace an export that is up to date or of another text. log: gets lines
    for the user.

    The folder is replaced once all is written. Raises UserError for a wrong name, limit or file, for other
    files in the folder's place, text that is not available, a split without rows, no room, and an unexpected digest.
    """
    if on_bad_line != "error" and files is None:
        raise UserError(f"ON_BAD_LINE={on_bad_line} is for the lines of FILES=…: {name} is not made of any.")
    left_out = LeftOutRows(skip_malformed=on_bad_line == "skip")
    dataset = _dataset(name, files, fields, hub, left_out, min_characters)
    _check_limits(name, dataset, limit, max_bytes)
    folder = _destination(data_dir, name)
    rules: dict[str, Any] = {"min_characters": dataset.min_characters if dataset.fields == TEXT else 1}
    if left_out.skip_malformed:
        rules["on_bad_line"] = on_bad_line
    requested = Manifest(name, dataset.source.describe(), rules, limit, 0, {}, max_bytes, dataset.fields)
    if not force and (existing := _existing_export(folder, requested, dataset)) is not None:
        log(f"{name} is up to date: {existing.summary()}")
        return existing
    remedy = "Make room, or name another place with T5XPG_DATA_DIR."
    with room_for(f"the export of {name}", folder.parent, remedy), directory_atomically(folder) as new:
        manifest = write_splits(requested, dataset.source, new, left_out)
        if left_out.counts:
            rules["left_out"] = {"counts": dict(left_out.counts), "first": left_out.first}
        _check_digests(manifest, dataset)
        write_manifest(new, manifest)
        _carry_over(folder, new)
    log(f"{name}: {manifest.summary()}")
    if left_out.counts:
        log(left_out.summary())
    if left_out.half_characters:
        log(f"rows with half a character (a lone surrogate), which is U+FFFD now: {left_out.half_characters:,}")
    if vocabularies := sorted(path.name for path in folder.glob("vocabularies/*/")) if force else []:
        log(f"vocabularies of {name}, unchanged: {', '.join(vocabularies)}. `make vocab … FORCE=1` trains one anew")
    return manifest


def _existing_export(folder: Path, requested: Manifest, dataset: Dataset) -> Manifest | None:
    """The manifest in the folder if its export is whole; else None. Raises UserError for an export of another text, and
    for one that was edited."""
    if not (folder / MANIFEST).is_file():
        return None
    existing = read_manifest(folder)
    if existing.identity == dict(dataset.sha256):  # the same text, whatever its source was
        existing = dataclasses.replace(existing, source=requested.source)
    _check_same(folder, existing, requested)
    if existing.files_are_whole(folder):
        return existing
    if existing.was_edited(folder):
        existing.check_files(folder)
    return None


def _check_digests(manifest: Manifest, dataset: Dataset) -> None:
    """Raise UserError if a full export has another text than on other machines, where that is known."""
    is_full = manifest.limit is None and manifest.max_bytes is None
    if is_full and dataset.sha256 and manifest.identity != dict(dataset.sha256):
        raise UserError(
            f"The text of {manifest.name} is not the one that every machine should get: its sha256 is "
            f"{manifest.identity}, expected {dict(dataset.sha256)}. It is read otherwise now."
        )


def _check_same(folder: Path, existing: Manifest, requested: Manifest) -> None:
    """Raise UserError, with the differences, if an export is of another text than the requested one."""
    rules = {name: value for name, value in existing.filter.items() if name != "left_out"}
    existing = dataclasses.replace(existing, name=requested.name, filter=rules)
    names = ("source", "filter", "limit", "max_bytes", "fields")
    changed = [
        name for name in names if _without_paths(getattr(existing, name)) != _without_paths(getattr(requested, name))
    ]
    if not changed:
        return
    then, now = existing.command(), requested.command()
    ways = f"  made by  {then}\n  now      {now}" if then != now else "  its source has another content now"
    raise UserError(
        f"{folder} holds another export of this name ({', '.join(changed)} changed):\n{ways}\nIts vocabularies, caches "
        f"and runs are of that text. To keep it, choose another name, DATASET=…; to replace it, type: "
        f"{requested.command(force=True)}"
    )


def _without_paths(value: Any) -> Any:
    """The description of a source without the paths of its files, which are known by their digests."""
    if isinstance(value, Mapping):
        has_digest = "sha256" in value
        return {name: _without_paths(one) for name, one in value.items() if not (has_digest and name == "path")}
    return [_without_paths(one) for one in value] if isinstance(value, list | tuple) else value


def check_source(name: str, *, limit: int | None, max_bytes: int | None, **source: Any) -> None:
    """Raise UserError for arguments that `export_dataset` refuses before it reads a text. Nothing is read or written.

    source: its `files`, `fields`, `hub` and `min_characters`.
    """
    _check_limits(name, _dataset(name, left_out=LeftOutRows(), **source), limit, max_bytes)


def _dataset(
    name: str,
    files: Mapping[str | None, list[Path]] | None,
    fields: Mapping[str, str] | None,
    hub: HuggingFace | None,
    left_out: LeftOutRows,
    min_characters: int | None,
) -> Dataset:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise UserError(
            f"DATASET={name[: _LONGEST_NAME + 1]}: a name is at most {_LONGEST_NAME} letters, digits and underscores, "
            "and starts with a letter."
        )
    if files is not None and hub is not None:
        raise UserError("FILES=… and HUB=… are two sources: give one of them.")
    if fields is not None and files is None:
        raise UserError(f'FIELDS={",".join(fields)} are of records in your own files: name them, FILES="train=…".')
    if min_characters is not None and ((files is None and hub is None) or fields is not None):
        raise UserError(f"MIN_CHARACTERS={min_characters} is for texts of your own, in FILES=… or HUB=…")
    if files is not None:
        source = LocalFiles(files, left_out, fields or dict(zip(TEXT, TEXT, strict=True)))
        return Dataset(source, fields=tuple(fields or TEXT), min_characters=min_characters or 1)
    if hub is not None:
        return Dataset(hub, min_characters=min_characters or 1)
    known = built_in()
    if name not in known:
        raise UserError(
            f"There is no dataset {name!r}.{nearest(name, known)} To make one of your own text: "
            f'DATASET={name} FILES="train=… validation=… test=…"'
        )
    return known[name]


def _check_limits(name: str, dataset: Dataset, limit: int | None, max_bytes: int | None) -> None:
    if limit is not None and limit < 1:
        raise UserError(f"LIMIT={limit}: it counts rows, so it is 1 or more.")
    if max_bytes is not None and max_bytes < 1:
        raise UserError(f"MAX_MB={max_bytes / 1e6:g}: it is the size of text, so it is more than 0.")
    source = dataset.source
    if isinstance(source, HuggingFace) and source.streamed and limit is None and max_bytes is None:
        raise UserError(
            f"{name} is read from {source.path} as it comes, which may be more than this machine holds. Say how much "
            "of it to take: add MAX_MB=1000 (megabytes of text), or LIMIT=100000 (documents)."
        )


def _destination(data_dir: Path, name: str) -> Path:
    """The folder of an export, links followed. Raises UserError if it holds files that are not of an export."""
    path = data_dir / name
    folder = Path(os.path.realpath(path))
    remove_abandoned(folder.parent)  # and put back the folder that a killed export had moved away
    if path.is_symlink() and not folder.is_dir():
        raise UserError(f"{path} is a link to {folder}, where there is no folder: remove the link, or make the folder.")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{path} is no folder: move it away, or choose another name, DATASET=….")
    if not (folder / MANIFEST).exists():
        files = [split_path(path, split) for split in SPLITS]
        if others := [file.name for file in files if os.path.lexists(file)]:
            raise UserError(
                f"{path} holds {', '.join(others)} and no {MANIFEST}: no export made that, so it is not replaced. "
                "Move it away, or choose another name, DATASET=…."
            )
    return folder


def _carry_over(old: Path, new: Path) -> None:
    """Copy the other contents of the folder that is being replaced: files, folders, and links as links."""
    splits = json_object_if_any(old / MANIFEST).get("splits", SPLITS)
    exported = {MANIFEST, MEMORY, *(split_path(old, split).name for split in splits)}
    for path in sorted(old.iterdir()) if old.is_dir() else []:
        if path.name in exported:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, new / path.name, symlinks=True)
        elif path.exists() and not path.is_file():
            raise UserError(
                f"{path} is neither a file nor a folder, and stands in the way of the export: move it away."
            )
        else:
            shutil.copy2(path, new / path.name, follow_symlinks=False)
