"""Export a dataset: its text as JSON lines by split, with a manifest."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from t5xpg.data.datasets_table import Dataset, LocalFiles, built_in
from t5xpg.data.lines import BadLines
from t5xpg.data.manifest import (
    MANIFEST,
    SPLITS,
    Manifest,
    read_manifest,
    split_path,
    write_manifest,
)
from t5xpg.data.splits import MIN_CHARACTERS, write_splits
from t5xpg.digests import MEMORY
from t5xpg.errors import UserError, nearest
from t5xpg.files import directory_atomically, remove_abandoned

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LONGEST_NAME = 100  # file names are made of it
# What is done with a line of the user's files that cannot be used.
ON_BAD_LINE = ("error", "skip")


def export_dataset(
    name: str,
    *,
    data_dir: Path,
    files: Mapping[str | None, list[Path]] | None = None,
    limit: int | None = None,
    force: bool = False,
    on_bad_line: str = ON_BAD_LINE[0],
    log: Callable[[str], None] = print,
) -> Manifest:
    """Write `data_dir/name/{train,validation,test}.jsonl` and its manifest.json, unless they are up to date.

    Kept are rows with a text of more than 100 characters. `files` (from `local_files.parse_files`) takes the place of
    the known source of `name`; `limit` keeps the first rows of each split, or of a source without splits the first
    rows altogether; `force` exports again what is up to date. A line of the files that cannot be used is an error, or
    with `on_bad_line="skip"` left out, counted, and told in the manifest and the log. `log` gets lines for the user.

    The folder is replaced when all is written; an interruption leaves it as it was. Raises UserError where the name,
    the limit or the files are wrong, something else stands in the folder's place, the text cannot be had, nothing is
    kept, there is no room, or the result is not the one that is expected on every machine.
    """
    left_out = _left_out(name, on_bad_line, files)
    dataset = _dataset(name, files, left_out)
    if limit is not None and limit < 1:
        raise UserError(f"LIMIT={limit}: it counts rows, so it is 1 or more.")
    folder = _destination(data_dir, name)
    remove_abandoned(folder.parent)
    description = json.loads(json.dumps(dataset.source.describe()))
    kept: dict[str, Any] = {"min_characters": MIN_CHARACTERS + 1}
    if left_out is not None:
        kept["on_bad_line"] = on_bad_line
    if not force and (manifest := _up_to_date(folder, description, kept, limit)):
        log(f"{name} is up to date: {manifest.summary()}")
        return manifest

    with _room(name, folder), directory_atomically(folder) as new:
        rows_read, splits = write_splits(name, dataset.source, new, limit, left_out)
        if left_out is not None:
            kept["bad_lines"] = {"count": left_out.count, "first": left_out.first}
        manifest = Manifest(name, description, kept, limit, rows_read, splits)
        if limit is None and dataset.sha256 and manifest.identity != dict(dataset.sha256):
            raise UserError(
                f"The text of {name} is not the one that every machine should get: its sha256 is {manifest.identity}, "
                f"expected {dict(dataset.sha256)}. Files of the installed packages were changed: install them again."
            )
        write_manifest(new, manifest)
        _carry_over(folder, new)
    log(f"{name}: {manifest.summary()}")
    if left_out is not None and left_out.count:
        log(left_out.summary())
    return manifest


def _left_out(name: str, on_bad_line: str, files: Mapping[str | None, list[Path]] | None) -> BadLines | None:
    """Where bad lines go; None where they are errors."""
    if on_bad_line not in ON_BAD_LINE:
        raise UserError(f"ON_BAD_LINE={on_bad_line}: expected {' or '.join(ON_BAD_LINE)}.")
    if on_bad_line == "error":
        return None
    if files is None:
        raise UserError(f"ON_BAD_LINE={on_bad_line} is for the lines of FILES=…: {name} is not made of any.")
    return BadLines()


def _dataset(name: str, files: Mapping[str | None, list[Path]] | None, left_out: BadLines | None) -> Dataset:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise UserError(
            f"DATASET={name[: _LONGEST_NAME + 1]}: a name is at most {_LONGEST_NAME} letters, digits and underscores, "
            "and starts with a letter."
        )
    if files is not None:
        return Dataset(LocalFiles(files, left_out))
    known = built_in()
    if name not in known:
        raise UserError(
            f"There is no dataset {name!r}.{nearest(name, known)} To make one of your own text: "
            f'DATASET={name} FILES="train=… validation=… test=…"'
        )
    return known[name]


def _destination(data_dir: Path, name: str) -> Path:
    """The folder of an export, links followed. Refuses to replace what is no export."""
    given = data_dir / name
    folder = Path(os.path.realpath(given))
    if given.is_symlink() and not folder.is_dir():
        raise UserError(
            f"{given} is a link to {folder}, where there is no folder: remove the link, or make the folder."
        )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{given} is no folder: move it away, or choose another name, DATASET=….")
    if not (folder / MANIFEST).exists():
        files = [split_path(given, split) for split in SPLITS]
        if strangers := [path.name for path in files if os.path.lexists(path)]:
            raise UserError(
                f"{given} holds {', '.join(strangers)} and no {MANIFEST}: no export made that, so it is not replaced. "
                "Move it away, or choose another name, DATASET=…."
            )
    return folder


@contextlib.contextmanager
def _room(name: str, folder: Path) -> Iterator[None]:
    """Say where a disk is full: the error of a write does not."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise UserError(
            f"There is no room for the export of {name} in {folder.parent} ({error.strerror}); what was there before "
            "is as it was. Make room, or name another place with T5XPG_DATA_DIR."
        ) from error


def _up_to_date(folder: Path, description: object, kept: object, limit: int | None) -> Manifest | None:
    if not (folder / MANIFEST).is_file():
        return None
    try:
        manifest = read_manifest(folder)
    except UserError:
        return None  # of another version: made anew
    rules = {name: value for name, value in manifest.filter.items() if name != "bad_lines"}
    same = manifest.source == description and rules == kept and manifest.limit == limit
    return manifest if same and manifest.files_are_whole(folder) else None


def _carry_over(old: Path, new: Path) -> None:
    """Copy what else stands in the folder that is being replaced: files, folders, and links as links."""
    ours = {MANIFEST, MEMORY, *(split_path(old, split).name for split in SPLITS)}
    for path in sorted(old.iterdir()) if old.is_dir() else []:
        if path.name in ours:
            continue
        if path.is_symlink() or path.is_file():
            shutil.copy2(path, new / path.name, follow_symlinks=False)
        elif path.is_dir():
            shutil.copytree(path, new / path.name, symlinks=True)
        else:
            raise UserError(
                f"{path} is neither a file nor a folder, and stands in the way of the export: move it away."
            )
