"""Remembered digests: what is believed, what is read again, and what is said of files that are not as recorded."""

import hashlib
import os
from pathlib import Path

import pytest

from t5xpg.base import digests
from tests.refusals import assert_named, refused


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest(path: Path) -> str:
    return digests.digests(path.parent, [path.name])[path.name]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read, and files that are remembered however new they are."""
    monkeypatch.setattr(digests, "_SETTLED_NS", -1)
    monkeypatch.delenv(digests.VERIFY_VARIABLE, raising=False)
    names: list[str] = []
    read = digests.sha256_of_file
    monkeypatch.setattr(digests, "sha256_of_file", lambda path: names.append(path.name) or read(path))
    return names


def test_a_file_is_read_once(tmp_path: Path, reads: list[str]) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "b").write_bytes(b"two")
    expected = {"a": sha256(b"one"), "below/b": sha256(b"two")}
    assert digests.digests(tmp_path, [*expected, "gone", "below"]) == expected
    assert digest(tmp_path / "a") == sha256(b"one")
    digests.check(tmp_path, expected, "Damaged", "Type this.")
    assert reads == ["a", "b"]
    # a folder of others stays as it is
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "c").write_bytes(b"one")
    for _ in range(2):
        assert digests.digests(tmp_path / "theirs", ["c"], memory=tmp_path / "ours.json") == {"c": sha256(b"one")}
    assert reads == ["a", "b", "c"]
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["c"]


@pytest.mark.parametrize("change", ["longer", "same size", "times put back", "replaced"])
def test_a_changed_file_is_read_again(tmp_path: Path, reads: list[str], change: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one")
    digest(path)
    before = path.stat()
    content = b"longer" if change == "longer" else b"two"
    if change == "replaced":
        (tmp_path / "new").write_bytes(content)
        os.replace(tmp_path / "new", path)
    else:
        path.write_bytes(content)
    if change in ("times put back", "replaced"):
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest(path) == sha256(content)


def test_verify_reads_what_is_remembered(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"one")
    digest(tmp_path / "a")
    memory = tmp_path / digests.MEMORY
    rotten = sha256(b"another")  # as where a disk gave other bytes without a trace
    memory.write_text(memory.read_text().replace(sha256(b"one"), rotten))
    for verify, expected in ((None, rotten), ("0", rotten), ("1", sha256(b"one")), ("", sha256(b"one"))):
        if verify is not None:
            monkeypatch.setenv(digests.VERIFY_VARIABLE, verify)
        assert digest(tmp_path / "a") == expected


def test_what_cannot_be_remembered_is_read_again(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that just changed, and a folder that cannot be written."""
    (tmp_path / "a").write_bytes(b"one")
    with monkeypatch.context() as patch:
        patch.setattr(digests, "_SETTLED_NS", 3_600_000_000_000)
        assert digest(tmp_path / "a") == digest(tmp_path / "a") == sha256(b"one")
    with monkeypatch.context() as patch:
        patch.setattr(digests, "write_json", lambda *_: (_ for _ in ()).throw(PermissionError(13, "denied")))
        assert digest(tmp_path / "a") == digest(tmp_path / "a") == sha256(b"one")
    assert reads == ["a"] * 4
    assert not (tmp_path / digests.MEMORY).exists()


def test_a_memory_that_is_none_is_ignored(tmp_path: Path, reads: list[str]) -> None:
    (tmp_path / "a").write_bytes(b"one")
    files = ('{"a": 3}', "[1]", '{"a": [1, 2]}')
    contents = ["", "[]", "{}", '{"format": 1}', '{"format": 9, "files": {}}', "[" * 100_000, "\x00"]
    for content in [*contents, *(f'{{"format": 1, "files": {entries}}}' for entries in files)]:
        (tmp_path / digests.MEMORY).write_text(content)
        assert digest(tmp_path / "a") == sha256(b"one")
    assert len(reads) == 10


def test_every_wrong_file_is_named(tmp_path: Path, reads: list[str]) -> None:
    for name, content in {"good": b"good", "empty": b"", "other": b"other"}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    expected = {name: sha256(b"good") for name in ("good", "empty", "other", "missing", "folder", "../outside", "/etc")}
    found = digests.differences(tmp_path, expected)
    assert len(found) == 6
    assert_named("\n".join(found), [name for name in expected if name != "good"])
    with refused("The export is damaged", *found[:4], "2 more", "Type this."):
        digests.check(tmp_path, expected, "The export is damaged", "Type this.")
