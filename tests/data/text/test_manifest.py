"""The lines of an export, and its manifest."""

import dataclasses
import hashlib
import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5xpg.data.text.lines import LeftOutRows
from t5xpg.data.text.local_files import parse_files
from t5xpg.data.text.manifest import (
    Manifest,
    SplitRecord,
    canonical_line,
    find_manifests,
    read_manifest,
    write_manifest,
)
from t5xpg.data.text.sources import LocalFiles
from tests.refusals import refused
from tests.workplace import left_by

TEXT = b"x" * 400
SHA256 = hashlib.sha256(TEXT).hexdigest()
MANIFEST = Manifest("mine", {"kind": "files"}, {"min_characters": 101}, None, 9, {"train": SplitRecord(3, 400, SHA256)})


def test_an_export_that_was_being_replaced_is_found(tmp_path: Path) -> None:
    aside = tmp_path / left_by("mine", ".old")
    (aside / "mine").mkdir(parents=True)
    write_manifest(aside / "mine", MANIFEST)
    assert find_manifests(tmp_path) == {"mine": tmp_path / "mine"}
    assert read_manifest(tmp_path / "mine") == MANIFEST


@given(st.text())
def test_a_line_is_json_in_utf_8_on_one_line(text: str) -> None:
    line = canonical_line(text)
    assert line.startswith(b'{"text": "')
    assert line.endswith(b'"}\n')
    assert len(line.splitlines()) == 1
    whole = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    assert json.loads(line) == {"text": whole}


def test_a_line_escapes_nothing_but_control_characters_quotes_and_backslashes() -> None:
    assert canonical_line('é\u2028😀/"\\\n\x1b\x7f') == '{"text": "é\u2028😀/\\"\\\\\\n\\u001b\x7f"}\n'.encode()


def test_manifests_are_read_and_found(tmp_path: Path) -> None:
    write_manifest(tmp_path / "mine", MANIFEST)
    write_manifest(tmp_path / ".mine.half.tmp", MANIFEST)
    assert read_manifest(tmp_path / "mine") == MANIFEST
    assert find_manifests(tmp_path) == {"mine": tmp_path / "mine"}
    assert find_manifests(tmp_path / "gone") == {}
    assert not MANIFEST.files_are_whole(tmp_path / "mine")
    (tmp_path / "mine" / "train.jsonl").write_bytes(TEXT)
    assert MANIFEST.files_are_whole(tmp_path / "mine")


def changed(**values: object) -> str:
    return json.dumps(MANIFEST.to_json() | values)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "[" * 100_000,
        '{"format": 99}',
        changed(rows_read=10**30),
        changed(splits={}),
        changed(splits={"../../etc": vars(MANIFEST.splits["train"])}),
        changed(splits={"train": vars(MANIFEST.splits["train"]) | {"documents": None}}),
    ],
)
def test_says_that_a_manifest_cannot_be_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "manifest.json").write_text(content)
    with refused("manifest", "make data DATASET=mine FORCE=1"):
        read_manifest(tmp_path / "mine")
    with refused("'mime'", "Did you mean mine"):
        read_manifest(tmp_path / "mime")


def test_the_command_makes_the_same_export_again(tmp_path: Path) -> None:
    paths = [tmp_path / "a b.txt", tmp_path / "it's.txt", tmp_path / "c.txt"]
    for path in paths:
        path.write_text(path.name)
    exports: list[dict[str | None, list[Path]]] = [{"train": paths[:2], "test": paths[2:]}, {None: paths}]
    for files in exports:
        source = LocalFiles(files, LeftOutRows(), {"text": "text"}).describe()
        manifest = dataclasses.replace(MANIFEST, source=source, limit=7)
        words = shlex.split(manifest.command(force=True))
        assert words[:3] == ["make", "data", "DATASET=mine"]
        assert words[4:] == ["MIN_CHARACTERS=101", "LIMIT=7", "FORCE=1"]
        assert parse_files(words[3].removeprefix("FILES=")) == files
    assert MANIFEST.command() == "make data DATASET=mine MIN_CHARACTERS=101"
