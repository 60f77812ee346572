"""What loggers are told is what stands in the run's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base.metric_values import Histogram
from t5xpg.run.loggers.exporter import Audience, named, recorded

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
TOLD = [
    (0, {"validation/loss": 5.0}),
    (2, {"train/loss": 4.0, "timing/seconds_per_step": 0.1}),
    (4, {"train/loss": 3.0, "validation/one/loss": 2.5, "infer_eval/one/bleu": 1.5, "timing/seconds_per_step": 0.2}),
]


def test_records_of_files(tmp_path: Path) -> None:
    for name, records in (("metrics", METRICS), ("timing", TIMING)):
        (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    assert list(recorded(tmp_path / "metrics", tmp_path / "timing", 4)) == TOLD


def test_values_that_can_be_told() -> None:
    histogram = Histogram(np.arange(3.0))
    values = {"a": np.float32(0.5), "b": "text", "c": None, "d": histogram, "e": [1], "f": True}
    assert named("x", values) == {"x/a": 0.5, "x/b": "text", "x/d": histogram, "x/f": True}


class Parts:
    """In the place of TensorBoard and of a teller."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def scalars(self, step: int, values: Any, prefix: str) -> None:
        self.seen.append((step, prefix))

    values = scalars

    def record(self, step: int, values: Any) -> None:
        self.seen.append((step, dict(values)))

    def close(self) -> None:
        self.seen.append("closed")


def test_a_step_is_told_when_all_of_it_is_known() -> None:
    tensorboard, teller = Parts(), Parts()
    audience = Audience(tensorboard, [teller])  # type: ignore[arg-type, list-item]
    audience.scalars(0, {"loss": 5.0}, "validation")
    audience.scalars(2, {"loss": 4.0}, "train")
    audience.scalars(2, {"seconds_per_step": 0.1}, "timing")
    assert teller.seen == TOLD[:1]
    audience.values(4, {"bleu": 1.5}, "infer_eval/one")
    assert teller.seen == TOLD[:2]
    audience.close()
    assert teller.seen == [*TOLD[:2], "closed"], "the next start tells of a step that was cut short"
    assert [step for step, _ in tensorboard.seen[:-1]] == [0, 2, 2, 4]


def test_the_last_step_is_told_at_the_end() -> None:
    teller = Parts()
    audience = Audience(Parts(), [teller])  # type: ignore[arg-type, list-item]
    audience.scalars(0, {"loss": 5.0}, "validation")
    audience.complete()
    audience.complete()
    assert teller.seen == TOLD[:1]
