"""A unit test that starts a process is told so, however it does; and what a run of the tests leaves alone."""

import multiprocessing
import os
import subprocess
from collections.abc import Callable

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
    with pytest.raises(RuntimeError, match="without the mark"):
        start()
    tiers._started = None  # or this test would fail, as one does that hides the error
