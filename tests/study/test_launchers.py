"""Runs as jobs: what is asked of submitit, and what is refused. A sweep's runs as jobs are in test_sweep.py."""

import re
import sys
import time
from pathlib import Path

import pytest

from t5xpg.study.launchers import launcher
from tests.refusals import refused
from tests.workplace import PATIENCE


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no Slurm
    for name, options, *named in (
        ("slrum", "", "Did you mean slurm"),
        ("here", "timeout_min=5", "LAUNCHER=slurm"),
        ("local", "timeout", "LAUNCHER_OPTIONS=timeout", "name=value"),
        ("local", "nodes=2", "LAUNCHER=local", "nodes"),
        ("local", "timeout_min=10h", "LAUNCHER=local", "10h"),
        ("slurm", "timeout_min=5", "LAUNCHER=slurm", "srun"),
    ):
        with refused(*named):
            launcher(name, options, 1, tmp_path)


# Ends with 7 when it is asked to stop.
STOPPED = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.process
def test_a_job_has_the_exit_code_and_the_output_of_its_command(tmp_path: Path) -> None:
    log, deadline = tmp_path / "log", time.monotonic() + PATIENCE
    options = "timeout_min=60 mem_gb=0.5 stderr_to_stdout=True name=mine"
    jobs = launcher("local", options, 1, tmp_path / "jobs")
    for command, code, said in (
        ([sys.executable, "-c", "print('said'); raise SystemExit(3)"], 3, "said\n"),
        ([str(tmp_path / "nothing")], 1, ".*FileNotFoundError.*"),
    ):
        job = jobs.launch(command, log, 0)
        while job.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert job.poll() == code
        assert re.fullmatch(said, log.read_text(), re.DOTALL)


@pytest.mark.process
def test_a_process_is_asked_to_stop_and_waited_for(tmp_path: Path) -> None:
    process = launcher("here", "", 1, tmp_path).launch([sys.executable, "-c", STOPPED], tmp_path / "log", 0)
    while (tmp_path / "log").read_text() != "ready\n":
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    process.wait()
    assert process.poll() == 7
