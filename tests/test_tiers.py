"""A unit test that starts a process is told so, however it does."""

import multiprocessing
import os
import subprocess
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from tests import tiers


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
    with pytest.raises(
        RuntimeError, match=r"test_tiers\.py::test_no_process.* starts a process \(.+\) without the mark"
    ):
        start()
    tiers._started = None  # or this test would fail, as one does that hides the error


def test_a_proof_may_start_a_process() -> None:
    running = tiers.pytest_runtest_protocol(Mock(get_closest_marker=lambda name: name == "proof"))
    next(running)
    tiers._audit("os.fork", ())
    running.close()


def test_the_longest_files_are_there() -> None:
    assert [name for name in tiers.LONGEST if not (tiers.TESTS / name).is_file()] == []
