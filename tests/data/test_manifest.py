"""The lines of an export, and its manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5xpg.data.manifest import Manifest, SplitRecord, canonical_line, find_manifests, read_manifest, write_manifest
from t5xpg.errors import UserError

MANIFEST = Manifest("mine", {"kind": "files"}, {"min_characters": 101}, None, 9, {"train": SplitRecord(3, 400, "ab")})


@given(st.text())
def test_a_line_is_json_in_utf_8_on_one_line(text: str) -> None:
    line = canonical_line(text)
    assert line.startswith(b'{"text": "')
    assert line.endswith(b'"}\n')
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    whole = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    assert json.loads(line) == {"text": whole}


def test_a_line_escapes_nothing_but_control_characters_quotes_and_backslashes() -> None:
    assert canonical_line('é\u2028😀/"\\\n\x1b\x7f') == '{"text": "é\u2028😀/\\"\\\\\\n\\u001b\x7f"}\n'.encode()


def test_manifests_are_read_and_found(tmp_path: Path) -> None:
    write_manifest(tmp_path / "mine", MANIFEST)
    write_manifest(tmp_path / ".mine.half.tmp", MANIFEST)
    (tmp_path / "empty").mkdir()
    assert read_manifest(tmp_path / "mine") == MANIFEST
    assert find_manifests(tmp_path) == {"mine": tmp_path / "mine"}
    assert find_manifests(tmp_path / "gone") == {}
    assert not MANIFEST.files_are_whole(tmp_path / "mine")
    (tmp_path / "mine" / "train.jsonl").write_bytes(b"x" * 400)
    assert MANIFEST.files_are_whole(tmp_path / "mine")
    assert MANIFEST.identity == {"train": "ab"}


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 99}', json.dumps(MANIFEST.to_json())[:-30]])
def test_says_that_a_manifest_cannot_be_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"is not a manifest of this version .* `make data DATASET=mine FORCE=1`"):
        read_manifest(tmp_path / "mine")
    with pytest.raises(UserError, match=r"no exported dataset 'mime'.* Did you mean mine"):
        read_manifest(tmp_path / "mime")
