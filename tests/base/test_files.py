import errno
import os
import resource
from fnmatch import fnmatch
from pathlib import Path

import pytest

from t5xpg.base import files
from t5xpg.base.errors import UserError
from tests.refusals import assert_named, refused
from tests.workplace import REPOSITORY, left_by


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "a.json"
    files.write_json(path, {"é": "caf\udce9"})  # what UTF-8 cannot encode
    before = path.read_bytes()
    for error in (KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")):

        def interrupted(error: BaseException = error) -> None:
            with files.write_atomically(path) as file:
                file.write(b"half")
                raise error

        with pytest.raises(type(error)) as raised:
            interrupted()
        if isinstance(raised.value, OSError):
            assert raised.value.filename == str(path)
    assert path.read_bytes() == before
    assert files.read_json(path) == {"é": "caf\udce9"}
    assert names(path.parent) == ["a.json"]


def test_a_folder_takes_the_place_of_another_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, replace = tmp_path / "folder", os.replace

    def replaced(text: str, error: BaseException | None = None) -> None:
        with files.directory_atomically(folder) as new:
            (new / "a.txt").write_text(text)
            if error:
                raise error

    def interrupted(source: Path, target: Path) -> None:
        if target == folder and source.suffix == ".tmp":
            raise KeyboardInterrupt
        replace(source, target)

    replaced("one")
    replaced("two")
    with pytest.raises(ZeroDivisionError):
        replaced("three", ZeroDivisionError())
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replaced("three")
    assert (folder / "a.txt").read_text() == "two"
    assert names(tmp_path) == ["folder"]


def test_files_that_belong_together_are_replaced_together(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # stands in for a full disk
        with pytest.raises(OSError, match="too large"):
            files.write_texts({one: "after", two: "after" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert one.read_text() == "before"
    assert names(tmp_path) == ["one"]
    files.write_texts({one: "after", two: "after"})
    assert (one.read_text(), two.read_text()) == ("after", "after")
    assert names(tmp_path) == ["one", "two"]


@pytest.mark.process
def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / left_by("a.json")).write_text("half")
    (tmp_path / left_by("folder")).mkdir()
    (tmp_path / left_by("folder") / "a.txt").write_text("half")
    kept = [left_by("mine", process=os.getpid()), ".hidden", "a.json", left_by("of a living one", process=1)]
    kept.append(left_by("elsewhere").replace(files.temporary_prefix("").split("-")[0][2:], "another_host", 1))
    for name in kept:
        (tmp_path / name).write_text("stays")
    assert sorted(files.remove_abandoned(tmp_path)) == sorted([left_by("a.json"), left_by("folder")])
    assert names(tmp_path) == sorted(kept)
    assert files.remove_abandoned(tmp_path / "nowhere") == []
    # a folder whose replacement never came is put back
    aside = tmp_path / left_by("folder", ".old")
    (aside / "folder").mkdir(parents=True)
    (aside / "folder" / "a.txt").write_text("the only one")
    files.remove_abandoned(tmp_path)
    assert names(tmp_path) == sorted([*kept, "folder"])
    assert (tmp_path / "folder" / "a.txt").read_text() == "the only one"


@pytest.mark.process
def test_what_killed_exports_and_reports_left_goes_with_the_next_one(tmp_path: Path) -> None:
    ignored = (REPOSITORY / ".gitignore").read_text().splitlines()
    (tmp_path / left_by("export")).mkdir()
    with files.directory_atomically(tmp_path / "export"):
        (written,) = names(tmp_path)
        assert any(fnmatch(written, pattern) for pattern in ignored)
    (tmp_path / left_by("README.md")).touch()
    files.write_texts({tmp_path / "README.md": "new"})
    assert names(tmp_path) == ["README.md", "export"]


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert files.last_lines(log, 3) == []
    log.write_bytes(b"x" * 100_000 + b"\none\ntwo \xff\n")
    assert files.last_lines(log, 2) == ["one", "two �"]
    with log.open("rb") as opened:
        assert [len(line) for line in files.last_lines(opened, 5)] == [(1 << 14) - 11, 3, 5]


def test_a_full_disk_is_one_message(tmp_path: Path) -> None:
    for number, expected in ((errno.EDQUOT, UserError), (errno.EACCES, PermissionError)):
        with pytest.raises(expected) as raised, files.room_for("the export of x", tmp_path, "Make room."):
            raise OSError(number, os.strerror(number))
        assert files.is_disk_full(raised.value.__cause__ or raised.value) == (number == errno.EDQUOT)
        if expected is UserError:
            assert_named(str(raised.value), ["the export of x", "Disk quota exceeded", "MiB free", "Make room."])


def test_objects_of_json_files(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert files.json_object_of(path) == files.json_object_if_any(path) == {}
    for text, value in (('{"a": 1}', {"a": 1}), ('\ufeff{"a": 1}', {"a": 1}), ("[1]", {})):
        path.write_text(text)
        assert files.json_object_of(path) == files.json_object_if_any(path) == value
    for damaged in (b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(damaged)
        assert files.json_object_if_any(path) == {}
        with refused("a.json", "what"):
            files.json_object_of(path, "what")
