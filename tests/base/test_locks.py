"""Locks on folders. Two opened files of one process hold flock against each other, as two processes do."""

import fcntl
import os
from pathlib import Path

import pytest

from t5xpg.base import locks
from tests.refusals import refused


def test_the_second_learns_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "folder" / ".lock"
    with locks.hold(path, doing="caching x", instead=""):
        with refused(f"Process {os.getpid()} is caching x", "Do that instead."):
            locks.hold(path, doing="y", instead="Do that instead.").__enter__()
        path.write_text("{torn")
        with refused(str(path)):
            locks.hold(path, doing="y", instead="").__enter__()
    with locks.hold(path, doing="caching y", instead=""):
        assert "caching y" in path.read_text()
    assert path.read_text() == ""


def test_the_second_waits(tmp_path: Path) -> None:
    first = locks.hold(tmp_path / ".lock", doing="caching x", instead="")
    said: list[str] = []

    def wait(line: str) -> None:
        said.append(line)
        first.__exit__(None, None, None)

    first.__enter__()
    with locks.hold(tmp_path / ".lock", doing="caching y", instead="", wait=wait):
        assert len(said) == 1
    assert "is caching x" in said[0]


def test_one_who_asks_whether_it_is_held_does_not_hold_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / ".lock").open("a+b") as asking, (tmp_path / ".lock").open("a+b") as another:

        def pause(seconds: float) -> None:
            asking.close()
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)  # who pauses keeps the lock from nobody
            another.close()

        monkeypatch.setattr(locks.time, "sleep", pause)
        fcntl.flock(asking, fcntl.LOCK_SH)  # in the middle of `is_held`
        with locks.hold(tmp_path / ".lock", doing="caching x", instead=""):
            assert another.closed
            assert locks.is_held(tmp_path / ".lock")
    assert not locks.is_held(tmp_path / ".lock")
