"""Export a dataset: its text as JSON lines by split, with a manifest."""

import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from t5xpg.base.digests import MEMORY
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import directory_atomically, remove_abandoned, room_for
from t5xpg.data.text.datasets import Dataset, built_in
from t5xpg.data.text.labelled import TEXT
from t5xpg.data.text.lines import LeftOut
from t5xpg.data.text.manifest import (
    MANIFEST,
    SPLITS,
    Manifest,
    read_manifest,
    split_path,
    write_manifest,
)
from t5xpg.data.text.sources import OF_FILES, HuggingFace, LocalFiles, Selection
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
    select: Selection | None = None,
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
    select: export only the text of chosen files, as `exported_name`. limit, max_bytes (of UTF-8): export only the first
    rows of each split, or of a source without splits. on_bad_line: what to do with a line of the files that cannot be
    used; "skip" leaves it out. Rows left out are counted by reason, in the manifest and for the user. force: export
    again what is up to date, and replace an export of another text. log: gets lines for the user.

    The folder is replaced when all is written. Raises UserError for a wrong name, limit, selection or file, something
    else in the folder's place, text that cannot be had, a split without rows, no room, and a digest that is not the
    expected one.
    """
    if on_bad_line != "error" and files is None:
        raise UserError(f"ON_BAD_LINE={on_bad_line} is for the lines of FILES=…: {name} is not made of any.")
    left_out = LeftOut(skip_malformed=on_bad_line == "skip")
    dataset = _dataset(name, files, fields, hub, left_out, min_characters)
    if select is not None:
        dataset = _selected(name, dataset, select)
    name = exported_name(name, select)
    _check_limits(name, dataset, limit, max_bytes)
    folder = _destination(data_dir, name)
    kept: dict[str, Any] = {"min_characters": dataset.min_characters if dataset.fields == TEXT else 1}
    if left_out.skip_malformed:
        kept["on_bad_line"] = on_bad_line
    wanted = Manifest(name, dataset.source.describe(), kept, limit, 0, {}, max_bytes, dataset.fields)
    there = read_manifest(folder) if (folder / MANIFEST).is_file() and not force else None
    if there is not None:
        if there.identity == dict(dataset.sha256):  # the same text, whatever its source was
            there = dataclasses.replace(there, source=wanted.source)
        _check_same(folder, there, wanted)
        if there.files_are_whole(folder):
            log(f"{name} is up to date: {there.summary()}")
            return there

    remedy = "Make room, or name another place with T5XPG_DATA_DIR."
    with room_for(f"the export of {name}", folder.parent, remedy), directory_atomically(folder) as new:
        manifest = write_splits(wanted, dataset.source, new, left_out)
        if left_out.counts:
            kept["left_out"] = {"counts": dict(left_out.counts), "first": left_out.first}
        if limit is None and max_bytes is None and dataset.sha256 and manifest.identity != dict(dataset.sha256):
            raise UserError(
                f"The text of {name} is not the one that every machine should get: its sha256 is {manifest.identity}, "
                f"expected {dict(dataset.sha256)}. It is read otherwise now."
            )
        write_manifest(new, manifest)
        _carry_over(folder, new)
    log(f"{name}: {manifest.summary()}")
    if left_out.counts:
        log(left_out.summary())
    if vocabularies := sorted(path.name for path in folder.glob("vocabularies/*/")) if force else []:
        log(f"vocabularies of {name}, unchanged: {', '.join(vocabularies)}. `make vocab … FORCE=1` trains one anew")
    return manifest


def _check_same(folder: Path, there: Manifest, wanted: Manifest) -> None:
    """Raise UserError, with what differs, where an export is of another text than the one that is wanted."""
    rules = {name: value for name, value in there.filter.items() if name != "left_out"}
    there = dataclasses.replace(there, name=wanted.name, filter=rules)
    names = ("source", "filter", "limit", "max_bytes", "fields")
    changed = [name for name in names if _without_paths(getattr(there, name)) != _without_paths(getattr(wanted, name))]
    if not changed:
        return
    then, now = there.command(), wanted.command()
    ways = f"  made by  {then}\n  now      {now}" if then != now else "  its source has another content now"
    raise UserError(
        f"{folder} holds another export of this name ({', '.join(changed)} changed):\n{ways}\nIts vocabularies, caches "
        f"and runs are of that text. To keep it, choose another name, DATASET=…; to replace it, type: "
        f"{wanted.command(force=True)}"
    )


def _without_paths(value: Any) -> Any:
    """The description of a source without the paths of its files, which are known by their digests."""
    if isinstance(value, Mapping):
        has_digest = "sha256" in value
        return {name: _without_paths(one) for name, one in value.items() if not (has_digest and name == "path")}
    return [_without_paths(one) for one in value] if isinstance(value, list | tuple) else value


def check_source(name: str, *, limit: int | None, max_bytes: int | None, **given: Any) -> None:
    """Raise UserError for what `export_dataset` would refuse before it reads a text. Nothing is read or written.

    given: its `files`, `fields`, `hub` and `min_characters`.
    """
    _check_limits(name, _dataset(name, left_out=LeftOut(), **given), limit, max_bytes)


def exported_name(name: str, select: Selection | None) -> str:
    """What the export of a selection of a dataset is called: `pycode_a` for `a*` of `pycode`."""
    return name if select is None else f"{name}_{select.suffix}"


def _dataset(
    name: str,
    files: Mapping[str | None, list[Path]] | None,
    fields: Mapping[str, str] | None,
    hub: HuggingFace | None,
    left_out: LeftOut,
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
        close, (whole, _, suffix) = nearest(name, known), name.rpartition("_")
        if whole in known and isinstance(known[whole].source, OF_FILES) and suffix.isalnum():  # the name of a selection
            close = f" A piece of {whole}: make data DATASET={whole} SELECT='{suffix}*'."
        raise UserError(
            f"There is no dataset {name!r}.{close} To make one of your own text: "
            f'DATASET={name} FILES="train=… validation=… test=…"'
        )
    return known[name]


def _selected(name: str, dataset: Dataset, select: Selection) -> Dataset:
    if not isinstance(dataset.source, OF_FILES) or dataset.fields != TEXT:
        able = [known for known, one in built_in().items() if isinstance(one.source, OF_FILES) and one.fields == TEXT]
        raise UserError(
            f"SELECT={select} chooses files by their names, and the text of {name} is not of files with names. "
            f"It can be of {', '.join(able)}, or of FILES=…"
        )
    if len(exported_name(name, select)) > _LONGEST_NAME:
        raise UserError(f"DATASET={name} is too long a name for a selection of it.")
    return dataclasses.replace(dataset, source=dataset.source.select(select, name), sha256={})


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
    """The folder of an export, links followed. Refuses to replace what is no export."""
    given = data_dir / name
    folder = Path(os.path.realpath(given))
    remove_abandoned(folder.parent)  # and put back what a killed export had moved away
    if given.is_symlink() and not folder.is_dir():
        raise UserError(
            f"{given} is a link to {folder}, where there is no folder: remove the link, or make the folder."
        )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{given} is no folder: move it away, or choose another name, DATASET=….")
    if not (folder / MANIFEST).exists():
        files = [split_path(given, split) for split in SPLITS]
        if others := [path.name for path in files if os.path.lexists(path)]:
            raise UserError(
                f"{given} holds {', '.join(others)} and no {MANIFEST}: no export made that, so it is not replaced. "
                "Move it away, or choose another name, DATASET=…."
            )
    return folder


def _carry_over(old: Path, new: Path) -> None:
    """Copy what else stands in the folder that is being replaced: files, folders, and links as links."""
    exported = {MANIFEST, MEMORY, *(split_path(old, split).name for split in SPLITS)}
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
