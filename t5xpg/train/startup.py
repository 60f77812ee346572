"""The first update of a run, and the measurement of the state before it.

A user waits for the first update; the measurement takes as long as many of them. Where memory allows, the update comes
first, and the measurement of a copy of the parameters right behind it. No number depends on the order.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from t5xpg.base.paths import shown
from t5xpg.optim.state import TrainState
from t5xpg.run.metrics import Window
from t5xpg.train.loop import Observer, Verdict

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


# Updates before the trace, in which memory is taken and the data run up, and updates in it.
WARM_UP, TRACED = 5, 10
NAME = "perfetto_trace.json.gz"

Step = Callable[[Any, Any], tuple[Any, Any]]


class StepProfile:
    """Traces the updates of a process from the sixth on, ten of them, into `folder`.

    folder/plugins/profile/<time>/ is what TensorBoard's profiler opens, and the perfetto_trace.json.gz in it what
    Perfetto opens. The updates compute what they would without; those at the ends of the trace wait for the device.
    """

    def __init__(self, folder: Path, log: Callable[[str], None] = print) -> None:
        self._folder, self._log = folder, log
        self._steps = 0
        self._tracing = False

    def around(self, step: Step) -> Step:
        """`step`, traced when its turn comes."""

        def traced(state: Any, batch: Any) -> tuple[Any, Any]:
            if self._steps == WARM_UP:
                jax.block_until_ready(state)
                jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
                self._tracing = True
            self._steps += 1
            with jax.profiler.StepTraceAnnotation("train", step_num=self._steps):
                result = step(state, batch)
            if self._tracing and self._steps == WARM_UP + TRACED:
                jax.block_until_ready(result)
                self.stop()
            return result

        return traced

    def stop(self) -> None:
        """End the trace and write it; nothing where there is none under way, as in a run that ended before."""
        if not self._tracing:
            return
        self._tracing = False
        jax.profiler.stop_trace()
        traces = sorted(self._folder.rglob(NAME), key=lambda path: path.stat().st_mtime)
        where = shown(traces[-1]) if traces else shown(self._folder)
        self._log(f"profile of {self._steps - WARM_UP} steps: {where}, for https://ui.perfetto.dev")
        self._log(f"or: tensorboard --logdir {shown(self._folder)}")


def release_unused() -> None:
    """Give back what is free: compiling leaves hundreds of megabytes. Only glibc has to be told; no error elsewhere."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def in_background(*functions: Callable[[], Any]) -> list[Future[Any]]:
    """Call `functions` one after the other in a thread of their own; a future of each. After an error all have it."""
    futures: list[Future[Any]] = [Future() for _ in functions]

    def work() -> None:
        failure: BaseException | None = None
        for function, future in zip(functions, futures, strict=True):
            if failure is None:
                try:
                    future.set_result(function())
                    continue
                except BaseException as error:
                    failure = error
            future.set_exception(failure)

    threading.Thread(target=work, name="background", daemon=True).start()
    return futures
