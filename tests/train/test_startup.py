"""The measurement behind the first update is of the state before it, and costs the update nothing."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp

from t5xpg.optim.state import TrainState
from t5xpg.run.metrics import Window
from t5xpg.train.startup import LateMeasurement


class Observer:
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def stepped(self, step: int, metrics: Any) -> bool:
        self.told.append(("stepped", step))
        return True

    def stats(self, step: int, window: Window, seconds: float, steps: int) -> None:
        self.told.append(("stats", step, seconds))

    def evaluate(self, step: int, state: Any) -> None:
        time.sleep(0.01)
        self.told.append(("evaluate", step, float(state.params["w"])))

    def save(self, step: int, state: Any, window: Window, passing: bool) -> None:
        self.told.append(("save", step))


def test_the_state_before_the_first_update_is_measured_behind_it() -> None:
    observer = Observer()
    update = jax.jit(
        lambda state, batch: (TrainState(state.step + 1, {"w": state.params["w"] + batch}, ()), {"loss": batch}),
        donate_argnums=0,
    )
    late = LateMeasurement(observer, update, lambda: observer.told.append(("updated", 1)))
    state = TrainState(jnp.zeros((), jnp.int32), {"w": jnp.float32(5)}, ())
    for _ in range(2):
        state, _ = late.train_step(state, jnp.float32(1))
    assert float(state.params["w"]) == 7
    assert late.stepped(1, {})
    late.stats(2, Window(), 100.0, 2)
    late.stats(4, Window(), 100.0, 2)
    late.evaluate(4, state)
    late.save(4, state, Window(), False)
    assert [each[:2] for each in observer.told] == [
        ("updated", 1), ("evaluate", 0), ("stepped", 1), ("stats", 2), ("stats", 4), ("evaluate", 4), ("save", 4)
    ]  # fmt: skip
    assert (observer.told[1][2], observer.told[5][2]) == (5, 7)
    assert observer.told[3][2] <= 99.99
    assert observer.told[4][2] == 100
