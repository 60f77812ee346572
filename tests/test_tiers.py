"""A unit test that starts a process is told so, however it does; and what a run of the tests leaves alone."""

import multiprocessing
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests import conftest, tiers


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run(["true"], check=False),
        os.fork,
        lambda: os.system("true"),
        lambda: multiprocessing.get_context("spawn").Process().start(),
    ],
)
def test_no_process_without_the_mark(start: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match="without the mark"):
        start()
    tiers._started = None  # or this test would fail, as one does that hides the error


def test_a_proof_may_start_a_process() -> None:
    running = tiers.pytest_runtest_protocol(Mock(get_closest_marker=lambda name: name == "proof"))
    next(running)
    tiers._audit("os.fork", ())
    running.close()


def test_a_run_of_the_tests_keeps_the_programs_that_the_user_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(conftest.PROGRAMS, str(tmp_path))
    monkeypatch.setattr(conftest, "download", Mock(side_effect=OSError("offline")))
    config = Mock(spec=["add_cleanup"])
    with pytest.raises(OSError, match="offline"):
        conftest.pytest_configure(config)
    own = Path(os.environ[conftest.PROGRAMS])
    for added in config.add_cleanup.call_args_list:
        added.args[0]()
    assert (own.exists(), tmp_path.exists()) == (False, True)
