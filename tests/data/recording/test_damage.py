"""Recordings that are damaged, of another form, or none: one message that names the file and says what to type."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from t5xpg.base.errors import UserError
from t5xpg.data.batch import hash_batch
from t5xpg.data.recording.format import batches_path, index_path
from t5xpg.data.recording.manifest import MANIFEST, files_of
from t5xpg.data.recording.reader import RecordedData
from tests.data.recording_samples import (
    NAMES,
    TRAIN,
    hashes,
    make,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "a recording")


@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_missing_or_of_another_size(folder: Path, name: str) -> None:
    path = folder / name
    content = path.read_bytes()
    remedy = r"Copy the recording again, or make it anew: make record EXP='some experiment' STEPS=7 OUTPUT=.* FORCE=1"
    path.write_bytes(content[:-1])
    with pytest.raises(
        UserError, match=rf"{name} has {len(content) - 1:,} bytes instead of {len(content):,}\. {remedy}"
    ):
        RecordedData(folder)
    path.unlink()
    with pytest.raises(UserError, match=rf"{name} is missing\. {remedy}"):
        RecordedData(folder)


def test_a_flipped_bit_is_found_when_it_is_read_or_verified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = batches_path(folder, "train")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with RecordedData(folder) as data:
        stream = data.open(TRAIN)
        assert [hash_batch(next(stream)) for _ in range(6)] == hashes(TRAIN, 6)
        for _ in range(2):  # it does not go away, nor is the batch left out
            with pytest.raises(UserError, match=r"train\.batches, batch 7 of 7: .*\. Copy the recording again, or"):
                next(stream)
        assert stream.batches_read == 6
    monkeypatch.setenv("T5XPG_VERIFY", "1")
    with pytest.raises(UserError, match=r"The recording .* is damaged: .*train\.batches"):
        RecordedData(folder)


def edit_manifest(folder: Path, where: str, new: Any) -> None:
    """Set a place such as "streams/train/batches" of a manifest; ... takes it out."""
    document = json.loads((folder / MANIFEST).read_text())
    *parents, last = where.split("/")
    value = document
    for name in parents:
        value = value[name]
    if new is ...:
        del value[last]
    else:
        value[last] = new
    (folder / MANIFEST).write_text(json.dumps(document))


def list_files_anew(folder: Path) -> None:
    """Let a manifest have sizes and digests of the files as they are now."""
    edit_manifest(folder, "files", {name: file for name, file in files_of(folder).items() if name != MANIFEST})


def test_an_index_of_another_recording(folder: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other", train=8)
    for path in (index_path, batches_path):
        shutil.copy(path(other, "train"), path(folder, "train"))
    list_files_anew(folder)
    with pytest.raises(UserError, match=r"train\.index has 8 batches instead of 7"):
        RecordedData(folder)


def test_batches_of_another_shape(folder: Path) -> None:
    for path in (index_path, batches_path):
        shutil.copy(path(folder, "validation"), path(folder, "train"))
    list_files_anew(folder)
    edit_manifest(folder, "streams/train/batches", 3)
    with RecordedData(folder) as data, pytest.raises(UserError, match="holds batches of another shape"):
        data.open(TRAIN)


@pytest.mark.parametrize(
    ("where", "new"),
    [
        ("format", 2),
        ("experiment", ...),
        ("streams", []),
        ("streams/train", ...),
        ("streams/validation-0", {}),
        ("streams/validation-1", {}),
        ("streams/train/batches", -1),
        ("streams/train/batches", 1.5),
        ("streams/train/batches", True),
        ("streams/train/limit", "7"),
        ("streams/train/identity", ["x"]),
        ("streams/train/identity/mixture_or_task_name", 3),
        ("streams/train/more", 1),
        ("streams/validation/description", None),
        ("source", {}),
        ("source/data", 3),
        ("versions", 3),
        ("files", None),
        ("files", {}),
        ("files/train.batches", ...),
        ("files/train.index/bytes", "x"),
        ("files/train.index", 3),
        ("files", {name: {"bytes": 1, "sha256": "x"} for name in [*NAMES, "../x"]}),
    ],
)
def test_manifests_of_another_form(folder: Path, where: str, new: Any) -> None:
    path = folder / MANIFEST
    edit_manifest(folder, where, new)
    with pytest.raises(
        UserError, match=re.escape(f"{path} cannot be read as the manifest of a recording of this version")
    ):
        RecordedData(folder)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b'{"kind": "recorded batches"', b"[" * 100_000])
def test_manifests_that_are_none(folder: Path, text: bytes) -> None:
    (folder / MANIFEST).write_bytes(text)
    with pytest.raises(UserError, match="cannot be read as the manifest"):
        RecordedData(folder)


def test_folders_that_are_none(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"absent is no recording: it has no manifest\.json\. `make record EXP=… STEPS=n"
    ):
        RecordedData(tmp_path / "absent")
    for other in ('{"format": 1, "name": "wikitext"}', "[1]", "null"):
        (folder / MANIFEST).write_text(other)
        with pytest.raises(UserError, match=r"is no recording: its manifest\.json is of something else"):
            RecordedData(folder)
    os.truncate(folder / MANIFEST, 1 << 25)
    with pytest.raises(UserError, match="33,554,432 bytes"):
        RecordedData(folder)


def test_a_description_that_is_none(folder: Path) -> None:
    edit_manifest(folder, "streams/train/description", {"vocabulary": 3})
    with RecordedData(folder) as data, pytest.raises(UserError, match=r"describes no task .* Copy the recording again"):
        data.describe(TRAIN)
