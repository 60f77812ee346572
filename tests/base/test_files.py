from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from t5xpg.base import files


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dead_process() -> int:
    """The number of a process that has ended."""
    return int(subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True).stdout)


def left_by(process: int, name: str, kind: str = ".tmp") -> str:
    """The name of a temporary file of another process of this machine."""
    return files.temporary_prefix(name).replace(f"-{os.getpid()}.", f"-{process}.") + f"abcd1234{kind}"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "a.json"
    files.write_json(path, {"é": 1})
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
    assert names(path.parent) == ["a.json"]


def test_a_folder_takes_the_place_of_another_when_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for text in ("one", "two"):
        with files.directory_atomically(folder) as new:
            (new / "a.txt").write_text(text)

    def interrupted() -> None:
        with files.directory_atomically(folder) as new:
            (new / "a.txt").write_text("three")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert (folder / "a.txt").read_text() == "two"
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("links", [True, False])
def test_files_that_belong_together_are_replaced_together(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here")))
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("before")

    def interrupted() -> None:
        with files.replaced_together(one, two):
            files.write_text(one, "after")
            files.write_text(two, "after")
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        interrupted()
    assert one.read_text() == "before"
    assert names(tmp_path) == ["one"]
    with files.replaced_together(one, two):
        files.write_text(one, "after")
        files.write_text(two, "after")
    assert (one.read_text(), two.read_text()) == ("after", "after")
    assert names(tmp_path) == ["one", "two"]


@pytest.mark.process
def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    dead = dead_process()
    (tmp_path / left_by(dead, "a.json")).write_text("half")
    (tmp_path / left_by(dead, "folder")).mkdir()
    (tmp_path / left_by(dead, "folder") / "a.txt").write_text("half")
    kept = [left_by(os.getpid(), "mine"), ".hidden", "a.json", left_by(1, "of a living one")]
    kept.append(left_by(dead, "elsewhere").replace(files.temporary_prefix("").split("-")[0][2:], "another_host", 1))
    for name in kept:
        (tmp_path / name).write_text("stays")
    assert sorted(files.remove_abandoned(tmp_path)) == sorted([left_by(dead, "a.json"), left_by(dead, "folder")])
    assert names(tmp_path) == sorted(kept)
    assert files.remove_abandoned(tmp_path / "nowhere") == []


@pytest.mark.process
def test_a_folder_whose_replacement_never_came_is_put_back(tmp_path: Path) -> None:
    aside = tmp_path / left_by(dead_process(), "folder", ".old")
    (aside / "folder").mkdir(parents=True)
    (aside / "folder" / "a.txt").write_text("the only one")
    files.remove_abandoned(tmp_path)
    assert names(tmp_path) == ["folder"]
    assert (tmp_path / "folder" / "a.txt").read_text() == "the only one"
