"""Export a dataset: its text as JSON lines by split, with a manifest."""

from __future__ import annotations

import array
import contextlib
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from t5xpg.data.datasets_table import Dataset, LocalFiles, Rows, Source, built_in, content_hash
from t5xpg.data.manifest import (
    MANIFEST,
    SPLITS,
    Manifest,
    SplitRecord,
    canonical_line,
    read_manifest,
    split_path,
    write_manifest,
)
from t5xpg.errors import UserError, nearest
from t5xpg.files import directory_atomically
from t5xpg.progress import Progress

# A row is kept if its text is longer.
_MIN_CHARACTERS = 100
# Where a source has no splits, one text in so many goes into validation, another into test, up to a number.
_HELD_OUT_OF = 25
_MAX_HELD_OUT = 10_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def export_dataset(
    name: str,
    *,
    data_dir: Path,
    files: Mapping[str | None, list[Path]] | None = None,
    limit: int | None = None,
    force: bool = False,
    log: Callable[[str], None] = print,
) -> Manifest:
    """Write `data_dir/name/{train,validation,test}.jsonl` and its manifest.json, unless they are up to date.

    Kept are rows with a text of more than 100 characters. `files` (from `local_files.parse_files`) takes the place of
    the known source of `name`; `limit` keeps the first rows of each split, or of a source without splits the first
    rows altogether; `force` exports again what is up to date. `log` gets one line for the user.

    The folder is replaced when all is written; an interruption leaves it as it was. Raises UserError where the name,
    the limit or the files are wrong, the text cannot be had, nothing is kept, or the result is not the one that is
    expected on every machine.
    """
    dataset = _dataset(name, files)
    if limit is not None and limit < 1:
        raise UserError(f"LIMIT={limit}: it counts rows, so it is 1 or more.")
    description = json.loads(json.dumps(dataset.source.describe()))
    kept = {"min_characters": _MIN_CHARACTERS + 1}
    folder = data_dir / name
    if not force and (manifest := _up_to_date(folder, description, kept, limit)):
        log(f"{name} is up to date: {manifest.summary()}")
        return manifest

    with directory_atomically(folder) as new:
        rows_read, splits = _write_splits(name, dataset.source, new, limit)
        manifest = Manifest(name, description, kept, limit, rows_read, splits)
        if limit is None and dataset.sha256 and manifest.identity != dict(dataset.sha256):
            raise UserError(
                f"The text of {name} is not the one that every machine should get: its sha256 is {manifest.identity}, "
                f"expected {dict(dataset.sha256)}. Files of the installed packages were changed: install them again."
            )
        write_manifest(new, manifest)
        _carry_over(folder, new)
    log(f"{name}: {manifest.summary()}")
    return manifest


def _dataset(name: str, files: Mapping[str | None, list[Path]] | None) -> Dataset:
    if not _NAME.fullmatch(name):
        raise UserError(f"DATASET={name}: a name is letters, digits and underscores, and starts with a letter.")
    if files is not None:
        return Dataset(LocalFiles(files))
    known = built_in()
    if name not in known:
        raise UserError(
            f"There is no dataset {name!r}.{nearest(name, known)} To make one of your own text: "
            f'DATASET={name} FILES="train=… validation=… test=…"'
        )
    return known[name]


def _up_to_date(folder: Path, description: object, kept: object, limit: int | None) -> Manifest | None:
    if not (folder / MANIFEST).is_file():
        return None
    try:
        manifest = read_manifest(folder)
    except UserError:
        return None  # of another version: made anew
    same = manifest.source == description and manifest.filter == kept and manifest.limit == limit
    return manifest if same and manifest.files_are_whole(folder) else None


def _carry_over(old: Path, new: Path) -> None:
    """Copy what else stands in the folder that is being replaced."""
    ours = {MANIFEST, *(split_path(old, split).name for split in SPLITS)}
    for path in sorted(old.iterdir()) if old.is_dir() else []:
        if path.name in ours:
            continue
        if path.is_dir():
            shutil.copytree(path, new / path.name, symlinks=True)
        else:
            shutil.copy2(path, new / path.name)


def _write_splits(name: str, source: Source, folder: Path, limit: int | None) -> tuple[int, dict[str, SplitRecord]]:
    """Write the splits' files; how many rows were read, and the records."""
    rows_read = 0
    splits: dict[str, SplitRecord] = {}
    for rows in source.read():
        label = f"export {name}" + (f" {rows.split}" if rows.split else "")
        with Progress(label, rows.total, "rows") as progress:

            def kept_texts(rows: Rows = rows, progress: Progress = progress) -> Iterator[str]:
                nonlocal rows_read
                taken = 0
                for text in rows.texts:
                    rows_read += 1
                    progress.advance()
                    if len(text) > _MIN_CHARACTERS:
                        yield text
                        taken += 1
                        if taken == limit:
                            return

            if rows.split is None:
                splits |= _write_held_out(folder, kept_texts())
            else:
                with _SplitWriter(folder, rows.split) as writer:
                    for text in kept_texts():
                        writer.write(canonical_line(text))
                splits[rows.split] = writer.record()
    empty = [split for split, record in splits.items() if not record.documents]
    if empty or "train" not in splits:
        raise UserError(
            f"{name} would have no document in {' and '.join(empty or ['train'])}: kept are rows with a text of more "
            f"than {_MIN_CHARACTERS} characters, and {rows_read} rows were read."
        )
    return rows_read, {split: splits[split] for split in SPLITS if split in splits}


def _write_held_out(folder: Path, texts: Iterator[str]) -> dict[str, SplitRecord]:
    """Write texts without splits: the smallest content hashes are validation, the next ones test, the rest train.

    Equal texts have equal hashes, so they are in one split.
    """
    hashes = array.array("Q")
    # in the folder of the export, which has room for it
    with tempfile.TemporaryFile(dir=folder) as spool:
        for text in texts:
            hashes.append(content_hash(text))
            spool.write(canonical_line(text))
        ordered = sorted(set(hashes))
        if len(ordered) < len(SPLITS):
            raise UserError(
                f"{len(ordered)} different documents of more than {_MIN_CHARACTERS} characters cannot be split into "
                'train, validation and test: give more text, or name the splits, FILES="train=… validation=… test=…".'
            )
        held_out = min(max(1, len(ordered) // _HELD_OUT_OF), _MAX_HELD_OUT)
        last_validation, last_test = ordered[held_out - 1], ordered[2 * held_out - 1]
        spool.seek(0)
        with contextlib.ExitStack() as stack:
            writers = {split: stack.enter_context(_SplitWriter(folder, split)) for split in SPLITS}
            for value, line in zip(hashes, spool, strict=True):
                split = "validation" if value <= last_validation else "test" if value <= last_test else "train"
                writers[split].write(line)
        return {split: writer.record() for split, writer in writers.items()}


class _SplitWriter:
    """Writes the lines of one split, counting and hashing them; a context manager."""

    def __init__(self, folder: Path, split: str) -> None:
        self._file: BinaryIO = split_path(folder, split).open("wb")
        self._digest = hashlib.sha256()
        self._documents = 0
        self._bytes = 0

    def __enter__(self) -> _SplitWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self._digest.update(line)
        self._documents += 1
        self._bytes += len(line)

    def record(self) -> SplitRecord:
        """What was written."""
        return SplitRecord(self._documents, self._bytes, self._digest.hexdigest())
