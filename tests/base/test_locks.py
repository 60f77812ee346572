from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from t5xpg.base import locks
from t5xpg.base.errors import UserError

pytestmark = pytest.mark.process

HOLDER = """
import sys, time
from pathlib import Path
from t5xpg.base import locks
with locks.hold(Path(sys.argv[1]), doing="caching x", instead=""):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until its input is closed."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "folder" / ".lock"
    with holder(path) as process:
        with (
            pytest.raises(UserError, match=rf"Process {process.pid} is caching x, since \d{{4}}-.*Do that instead"),
            locks.hold(path, doing="caching y", instead="Do that instead."),
        ):
            pass
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    with locks.hold(path, doing="caching y", instead=""):
        assert str(os.getpid()) in path.read_text()
    assert path.read_text() == ""


def test_the_second_waits(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    said: list[str] = []

    def wait(line: str) -> None:
        said.append(line)
        assert process.stdin is not None
        process.stdin.close()

    with holder(path) as process, locks.hold(path, doing="caching y", instead="", wait=wait, poll_seconds=0.01):
        assert process.wait() == 0
    assert len(said) == 1
    assert re.fullmatch(rf"Process {process.pid} is caching x, since .*\. Waiting for it …", said[0])


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with holder(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert "caching x" in path.read_text()
        with locks.hold(path, doing="caching y", instead=""):
            assert "caching y" in path.read_text()


def test_a_lock_that_says_nothing_of_its_holder(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with holder(path) as process:
        path.write_text("{torn")
        with (
            pytest.raises(UserError, match=r"Another process holds .*lock"),
            locks.hold(path, doing="caching y", instead=""),
        ):
            pass
        process.kill()
