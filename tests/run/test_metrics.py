"""Sums to means, and windows that survive a checkpoint."""

import dataclasses
import json
import math

import pytest

from t5xpg.run.metrics import Window

STEPS = [
    {"cross_entropy": 10.0, "z_loss": 0.1, "weights": 4.0, "correct": 1.0, "target_bytes": 3.0, "gradient_norm": 2.0},
    {"cross_entropy": 20.0, "z_loss": 0.3, "weights": 8.0, "correct": 5.0, "target_bytes": 7.0, "gradient_norm": 4.0},
]


def test_summary_is_per_token_and_per_byte() -> None:
    window = Window()
    assert math.isnan(window.summary()["loss"])
    for index, metrics in enumerate(STEPS):
        window.add({**metrics, "learning_rate": 0.1 * (index + 1), "loss": 99.0})
    expected = {"loss": 30 / 12, "accuracy": 6 / 12, "z_loss": 0.4 / 12, "gradient_norm": 3.0, "learning_rate": 0.2}
    expected |= {"nats_per_byte": 30 / 10, "bits_per_byte": 30 / 10 / math.log(2)}
    assert window.summary() == pytest.approx({**expected, "target_tokens": 12, "target_bytes": 10})


def test_an_unfinished_window_survives_json_exactly() -> None:
    whole, first = Window(), Window()
    for metrics in STEPS:
        whole.add(metrics)
    first.add(STEPS[0])
    second = Window(**json.loads(json.dumps(dataclasses.asdict(first))))
    second.add(STEPS[1])
    assert second == whole
