"""When to step, log, evaluate and save. Knows no model, no dataset and no file format."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from t5xpg.metrics import Window

State = TypeVar("State")
Metrics = Mapping[str, Any]


@dataclass(frozen=True)
class Schedule:
    """Periods in optimiser updates. Evaluation and saving happen after an update, and after the last one."""

    total_steps: int
    stats_period: int
    eval_period: int
    save_period: int
    until: int | None = None  # the run pauses after this update, and is saved

    @property
    def end(self) -> int:
        """The last update of this call."""
        return self.total_steps if self.until is None else min(self.until, self.total_steps)


@dataclass
class Clock:
    """Seconds spent in updates since the last report, without evaluation and saving. Not determined by the run."""

    now: Callable[[], float] = time.perf_counter
    seconds: float = 0.0
    steps: int = 0
    _started: float = field(default=0.0, repr=False)

    def start(self) -> None:
        """Begin to count."""
        self._started = self.now()

    def stop(self) -> None:
        """Stop counting until the next `start`."""
        self.seconds += self.now() - self._started

    def lap(self) -> tuple[float, int]:
        """Seconds and steps since the last lap, while counting."""
        self.stop()
        result = (self.seconds, self.steps)
        self.seconds, self.steps = 0.0, 0
        self.start()
        return result


class Observer(Protocol):
    """What the loop tells to those who write, draw, evaluate and save."""

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> bool:
        """One update's metrics, on the host, one update late: the device never waits for this.

        Returns whether they count in the window; those of an update that changed nothing do not.
        """

    def stats(self, step: int, window: Window, seconds: float, steps: int) -> None:
        """A window of `stats_period` updates is complete; `seconds` were spent on `steps` of them by this process."""

    def evaluate(self, step: int, state: Any) -> None:
        """Measure the state after `step` updates."""

    def save(self, step: int, state: Any, window: Window) -> None:
        """Keep the state after `step` updates, with the unfinished window."""


def run(
    state: State,
    *,
    step: int,
    window: Window,
    schedule: Schedule,
    train_step: Callable[[State, Any], tuple[State, Metrics]],
    batches: Iterator[Any],
    to_host: Callable[[Metrics], Mapping[str, Any]],
    observer: Observer,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[State, int]:
    """Update `state` from `step` to `schedule.end`; returns the last state and step.

    Metrics are read one update late, so that the next one is already under way. `should_stop` is asked after every
    update; when it says so, the state is saved and the loop returns early.
    """
    clock = Clock()
    pending: tuple[int, Metrics] | None = None

    def settle() -> None:
        nonlocal pending
        if pending is None:
            return
        at, metrics = pending
        pending = None
        values = to_host(metrics)
        clock.steps += 1
        if observer.stepped(at, values):
            window.add(values)
        if at % schedule.stats_period == 0 or at == schedule.total_steps:
            seconds, steps = clock.lap()
            observer.stats(at, window, seconds, steps)
            window.steps, window.values = 0, {}

    clock.start()
    while step < schedule.end:
        state, metrics = train_step(state, next(batches))
        settle()
        step += 1
        pending = (step, metrics)
        stopping = should_stop()
        last = step == schedule.total_steps
        evaluating = last or step % schedule.eval_period == 0
        saving = stopping or step == schedule.end or step % schedule.save_period == 0
        if evaluating or saving:
            settle()
            clock.stop()
            if evaluating:
                observer.evaluate(step, state)
            if saving:
                observer.save(step, state, window)
            clock.start()
        if stopping:
            break
    return state, step
