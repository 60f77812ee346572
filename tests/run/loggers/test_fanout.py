"""A logger gets each step once, whole and in order; whatever it does, the run goes on."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from t5xpg.run.loggers import Logger, StartedRun, fanout
from t5xpg.run.loggers.fanout import LastLoggedStep, LoggerFanout, LoggerThread, recorded_values
from tests.refusals import assert_named

METRICS = [
    {"step": 0, "split": "validation", "loss": 5.0},
    {"step": 2, "split": "train", "loss": 4.0, "accuracy": None},
    {"step": 2, "split": "skipped", "parameters": ["a"]},
    {"step": 4, "split": "train", "loss": 3.0},
    {"step": 4, "split": "validation", "task": "one", "loss": 2.5},
    {"step": 4, "split": "infer_eval", "task": "one", "examples": 8, "metrics": {"bleu": 1.5, "h": {"histogram": {}}}},
    {"step": 6, "split": "train", "loss": 2.0},
]
TIMING = [{"step": 2, "time": 1.0, "seconds_per_step": 0.1}, {"step": 4, "time": 2.0, "seconds_per_step": 0.2}]
LOGGED = [
    (0, {"validation/loss": 5.0}),
    (2, {"train/loss": 4.0, "timing/seconds_per_step": 0.1}),
    (4, {"train/loss": 3.0, "validation/one/loss": 2.5, "infer_eval/one/bleu": 1.5, "timing/seconds_per_step": 0.2}),
]


def test_values_of_a_runs_files(tmp_path: Path) -> None:
    for name, records in (("metrics", METRICS), ("timing", TIMING)):
        (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    assert list(recorded_values(tmp_path / "metrics", tmp_path / "timing", 4)) == LOGGED


def test_a_step_is_logged_when_all_of_it_is_known() -> None:
    tensorboard, thread = Mock(), Mock()
    records = LoggerFanout(tensorboard, [thread])
    records.values(0, {"loss": 5.0}, "validation")
    records.values(2, {"loss": 4.0}, "train")
    records.values(2, {"seconds_per_step": 0.1}, "timing")
    assert thread.mock_calls == [call.record(LOGGED[0])]
    records.complete()
    records.complete()
    records.values(4, {"bleu": 1.5}, "infer_eval/one")
    records.close()
    # the next start logs a step that was cut short
    assert thread.mock_calls == [call.record(LOGGED[0]), call.record(LOGGED[1]), call.close()]
    assert [each.args[0] for each in tensorboard.mock_calls[:-1]] == [0, 2, 2, 4]


@dataclass
class Remembering(Logger):
    """Keeps its steps. fails_at: a step that raises. knows: the last step that it says it has."""

    fails_at: int | None = None
    knows: int | None = None
    steps: list[int] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    finished: int = 0

    def start(self, run: StartedRun) -> int | None:
        self.ids.add(run.id)
        return self.knows

    def record(self, step: int, values: Mapping[str, Any]) -> None:
        if step == self.fails_at:
            raise OSError("the network is gone\nand more that nobody wants to read")
        assert values == {"train/loss": step / 2}
        self.steps.append(step)

    def finish(self) -> None:
        self.finished += 1


class Hanging(Logger):
    """Waits in `start` until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def start(self, run: StartedRun) -> None:
        self.released.wait()


Process = Callable[..., list[str]]


@pytest.fixture
def log(tmp_path: Path) -> Process:
    """One process of a run: the steps that earlier ones recorded, and its own; gives what it printed."""

    def process(logger: Logger, steps: range, earlier: range = range(0)) -> list[str]:
        printed: list[str] = []
        last = LastLoggedStep(tmp_path / "logger.json")
        run = StartedRun("small", last.id, tmp_path, tmp_path, 0, {}, "", {})
        records = [(step, {"train/loss": step / 2}) for step in (*earlier, *steps)]
        thread = LoggerThread(logger, run, last, records[: len(earlier)], printed.append)
        for record in records[len(earlier) :]:
            thread.record(record)
        thread.close()
        return printed

    return process


def test_each_step_is_logged_once_over_several_starts(log: Process) -> None:
    logger = Remembering()
    assert log(logger, range(6)) == []
    log(logger, range(4, 9), earlier=range(4))  # it goes on from an earlier checkpoint
    log(logger, range(11, 12), earlier=range(11))  # a process was killed before it logged steps 9 and 10
    assert logger.steps == list(range(12))
    assert (logger.finished, len(logger.ids)) == (3, 1)


@pytest.mark.parametrize(("knows", "logged"), [(-1, [0, 1, 2, 3]), (1, [2, 3])])
def test_a_logger_that_knows_what_it_has_is_believed(log: Process, knows: int, logged: list[int]) -> None:
    log(Remembering(), range(3))
    logger = Remembering(knows=knows)
    log(logger, range(3, 4), earlier=range(3))
    assert logger.steps == logged


def test_a_logger_that_fails_is_one_warning(log: Process) -> None:
    logger = Remembering(fails_at=2)
    (said,) = log(logger, range(5))
    assert_named(said, ["warning", "Remembering", "step 1 ", "OSError: the network is gone"])
    assert logger.steps == [0, 1]
    again = Remembering()
    log(again, range(0), earlier=range(5))
    assert again.steps == [2, 3, 4]


@pytest.mark.parametrize(("name", "value"), [("FINISH_SECONDS", 0.05), ("QUEUE_SIZE", 3)])
def test_a_logger_that_hangs_is_left_behind(
    name: str, value: Any, log: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(fanout, name, value)
    logger = Hanging()
    printed = log(logger, range(9))
    assert [line for line in printed if "warning: the logger Hanging" in line] == printed[-1:]
    logger.released.set()


def test_a_file_that_cannot_be_read_is_a_new_start(tmp_path: Path) -> None:
    (tmp_path / "logger.json").write_text("{")
    last = LastLoggedStep(tmp_path / "logger.json")
    assert last.step == -1
    assert LastLoggedStep(tmp_path / "logger.json").id == last.id
