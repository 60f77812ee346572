"""A process that is started here ends with the one that started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workplace import REPOSITORY

CHILD = """
import signal, sys, time
from t5xpg.base.processes import end_with_parent
signal.signal(signal.SIGTERM, lambda *_: (print("asked to stop", flush=True), sys.exit()))
end_with_parent()
print("started", flush=True)
time.sleep(60)
"""
PARENT = """
import sys, time
from pathlib import Path
from t5xpg.base.processes import start_logged
process = start_logged([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), start_new_session=True)
time.sleep(60)
"""


@pytest.mark.process
def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    log, end = tmp_path / "log", time.monotonic() + 30

    def wait_for(text: str) -> None:
        while text not in (log.read_text() if log.exists() else ""):
            assert time.monotonic() < end, text
            time.sleep(0.05)

    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, str(log)], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ) as parent:
        wait_for("started")
        parent.kill()
    wait_for("asked to stop")
