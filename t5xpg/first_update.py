"""The first update of a run, and the measurement of the state before it.

A user waits for the first update; the measurement takes as long as many of them. Where memory allows, the update comes
first, and the measurement of a copy of the parameters right behind it. No number depends on the order.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from t5xpg.loop import Observer, Verdict
from t5xpg.metrics import Window
from t5xpg.state import TrainState

TrainStep = Callable[[TrainState, Any], tuple[TrainState, Mapping[str, Any]]]


class LateMeasurement:
    """A `loop.Observer` in front of another, and a training step that has the state before its first call measured.

    updated: called between the two. The time of the measurement, which the loop takes for the update's, is taken off
    what `stats` reports.
    """

    def __init__(self, observer: Observer, train_step: TrainStep, updated: Callable[[], None]) -> None:
        self._observer = observer
        self._train_step = train_step
        self._updated = updated
        self._pending = True
        self._seconds = 0.0

    def train_step(self, state: TrainState, batch: Any) -> tuple[TrainState, Mapping[str, Any]]:
        """One update; after the first one, the measurement."""
        if not self._pending:
            return self._train_step(state, batch)
        self._pending = False
        params = jax.tree.map(jnp.copy, state.params)  # the update takes the memory of the old state
        updated, metrics = jax.block_until_ready(self._train_step(state, batch))
        began = time.perf_counter()
        self._updated()
        self._observer.evaluate(0, dataclasses.replace(updated, params=params))
        self._seconds = time.perf_counter() - began
        return updated, metrics

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> bool:
        """As the other observer."""
        return self._observer.stepped(step, metrics)

    def stats(self, step: int, window: Window, seconds: float, steps: int) -> None:
        """As the other observer, without the time of the measurement."""
        self._observer.stats(step, window, seconds - self._seconds, steps)
        self._seconds = 0.0

    def evaluate(self, step: int, state: Any) -> None:
        """As the other observer."""
        self._observer.evaluate(step, state)

    def infer_eval(self, step: int, state: Any) -> None:
        """As the other observer."""
        self._observer.infer_eval(step, state)

    def judge(self, step: int) -> Verdict:
        """As the other observer."""
        return self._observer.judge(step)

    def save(self, step: int, state: Any, window: Window, passing: bool) -> None:
        """As the other observer."""
        self._observer.save(step, state, window, passing)
