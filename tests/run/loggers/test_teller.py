"""A logger is told each step once, and whatever it does, the run goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from t5xpg.run.loggers import Logger, StartedRun
from t5xpg.run.loggers.exporter import Teller, Told


class Remembering(Logger):
    """Keeps what it is told; fails at a step, if told to; knows a step, if told to."""

    def __init__(self, fails_at: int | None = None, knows: int | None = None) -> None:
        self.steps: list[int] = []
        self.ids: list[str] = []
        self.finished = 0
        self._fails_at, self._knows = fails_at, knows

    def start(self, run: StartedRun) -> int | None:
        self.ids.append(run.id)
        return self._knows

    def record(self, step: int, values: Mapping[str, Any]) -> None:
        if step == self._fails_at:
            raise OSError("the network is gone\nand more that nobody wants to read")
        assert values == {"train/loss": step / 2}
        self.steps.append(step)

    def finish(self) -> None:
        self.finished += 1


class Hanging(Logger):
    """Waits in `start` until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def start(self, run: StartedRun) -> int | None:
        self.let_go.wait()
        return None


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def tell(tmp_path: Path, said: list[str]) -> Callable[..., Teller]:
    def make(logger: Logger, missed: range = range(0), **options: Any) -> Teller:
        told = Told(tmp_path / "logger.json")
        run = StartedRun("small", told.id, tmp_path, tmp_path, 0, {}, "", {})
        records = [(step, {"train/loss": step / 2}) for step in missed]
        return Teller(logger, run, told, records, said.append, **options)

    return make


def record(teller: Teller, steps: range) -> None:
    for step in steps:
        teller.record(step, {"train/loss": step / 2})


def test_each_step_is_told_once_over_several_starts(tell: Callable[..., Teller], said: list[str]) -> None:
    logger = Remembering()
    first = tell(logger)
    record(first, range(6))
    first.close()
    second = tell(logger, missed=range(4))  # it goes on from an earlier checkpoint
    record(second, range(4, 9))
    second.close()
    assert logger.steps == list(range(9))
    assert logger.finished == 2
    assert len(set(logger.ids)) == 1
    assert said == []


def test_what_a_killed_process_did_not_tell_is_told_by_the_next(tell: Callable[..., Teller]) -> None:
    logger = Remembering()
    teller = tell(logger, missed=range(5))
    record(teller, range(5, 7))
    teller.close()
    assert logger.steps == list(range(7))


@pytest.mark.parametrize(("knows", "told"), [(-1, [0, 1, 2, 3]), (1, [2, 3])])
def test_a_logger_that_knows_what_it_has_is_believed(tell: Callable[..., Teller], knows: int, told: list[int]) -> None:
    first = tell(Remembering())
    record(first, range(3))
    first.close()
    logger = Remembering(knows=knows)
    teller = tell(logger, missed=range(3))
    record(teller, range(3, 4))
    teller.close()
    assert logger.steps == told


def test_a_logger_that_fails_is_one_warning(tell: Callable[..., Teller], said: list[str]) -> None:
    logger = Remembering(fails_at=2)
    teller = tell(logger)
    record(teller, range(5))
    teller.close()
    assert logger.steps == [0, 1]
    assert said == [
        "warning: the logger Remembering ended after step 1 (OSError: the network is gone). The run goes on without "
        "it; the next start of the run, if there is one, tells it what it missed."
    ]
    again = Remembering()
    tell(again, missed=range(5)).close()
    assert again.steps == [2, 3, 4]


def test_a_logger_that_hangs_is_left_behind(tell: Callable[..., Teller], said: list[str]) -> None:
    logger = Hanging()
    teller = tell(logger, patience=0.05)
    record(teller, range(3))
    teller.close()
    assert "Hanging ended before the first record (it did not take them in 0 s)" in said[-1]
    assert sum("warning" in line for line in said) == 1
    logger.let_go.set()


def test_a_logger_that_is_too_slow_is_given_up(tell: Callable[..., Teller], said: list[str]) -> None:
    logger = Hanging()
    teller = tell(logger, waiting=3)
    record(teller, range(9))
    teller.close()
    assert len(said) == 1
    assert "it is 3 records behind" in said[0]
    logger.let_go.set()


def test_a_file_that_cannot_be_read_is_a_new_start(tmp_path: Path) -> None:
    (tmp_path / "logger.json").write_text("{")
    told = Told(tmp_path / "logger.json")
    assert told.step == -1
    assert Told(tmp_path / "logger.json").id == told.id
