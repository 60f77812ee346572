"""What must hold of any experiment, tried on small ones that are drawn at random (tests/odd_experiments.py)."""

import subprocess
import sys

import pytest

from tests.workplace import REPOSITORY, Workplace


def tried(workplace: Workplace, seconds: int, first: int) -> None:
    command = [sys.executable, "-m", "tests.odd_experiments", f"--seconds={seconds}", f"--first={first}"]
    subprocess.run(command, cwd=REPOSITORY, env=workplace.environment, check=True)


@pytest.mark.process
def test_an_odd_experiment_that_is_stopped_and_continued(workplace: Workplace) -> None:
    tried(workplace, 0, first=1)


@pytest.mark.proof
def test_an_hour_of_odd_experiments(workplace: Workplace) -> None:
    tried(workplace, 3600, first=1000)
