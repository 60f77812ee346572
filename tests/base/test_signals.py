"""Requests to stop: what is one request, what is not, and that of a process that has ended to those it started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from t5xpg.base import signals
from t5xpg.base.signals import NothingToSave, StopRequest
from tests.workplace import PATIENCE, REPOSITORY

CHILD = """
import signal, sys, time
from t5xpg.base.signals import end_with_parent
signal.signal(signal.SIGTERM, lambda *_: (print("asked to stop", flush=True), sys.exit()))
end_with_parent()
print("started", flush=True)
time.sleep(600)
"""
PARENT = """
import sys, time
from pathlib import Path
from t5xpg.study.launchers import start_logged
process = start_logged([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), start_new_session=True)
time.sleep(600)
"""


def test_a_second_sigterm_is_no_order_to_drop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now))
    with StopRequest() as request:
        assert not request.requested
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):  # as Make and its sender give it
            os.kill(os.getpid(), number)
        now += 5.0
        os.kill(os.getpid(), signal.SIGTERM)
        assert (request.number, request.age) == (signal.SIGTERM, 5.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_where_nothing_is_to_be_saved_a_request_ends_the_block(capfd: pytest.CaptureFixture[str]) -> None:
    with StopRequest() as request:
        request.at_once = True
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("it went on")
        except NothingToSave:
            os.kill(os.getpid(), signal.SIGTERM)  # what cleans up is not interrupted
            raise
    assert request.number == signal.SIGTERM
    assert capfd.readouterr().err == ""


@pytest.mark.process
def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    log, end = tmp_path / "log", time.monotonic() + PATIENCE
    log.touch()

    def wait_for(text: str) -> None:
        while text not in log.read_text():
            assert time.monotonic() < end, text
            time.sleep(0.05)

    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, str(log)], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ) as parent:
        wait_for("started")
        parent.kill()
    wait_for("asked to stop")
