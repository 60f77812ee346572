"""When to step, log, evaluate and save. Knows no model, no dataset and no file format."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from t5xpg.run.metrics import Window

State = TypeVar("State")
Metrics = Mapping[str, Any]


@dataclass(frozen=True)
class Schedule:
    """Periods in optimiser updates. Evaluation and saving happen after an update, and after the last one."""

    total_steps: int
    stats_period: int
    eval_period: int
    save_period: int
    infer_eval_period: int | None = None  # None: never
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


@dataclass(frozen=True)
class Verdict:
    """What the measurements of a step ask for: a checkpoint of it, or that it is the last one."""

    save: bool = False
    end: bool = False


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

    def infer_eval(self, step: int, state: Any) -> None:
        """Measure what the state after `step` updates predicts, with the metrics of its tasks."""

    def judge(self, step: int) -> Verdict:
        """What follows from what was measured of the state after `step` updates."""

    def save(self, step: int, state: Any, window: Window, passing: bool) -> None:
        """Keep the state after `step` updates, with the unfinished window.

        passing: only to go on from, as the process ends here; an unbroken run would not have kept it.
        """


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
    should_stop: Callable[[int], bool] = lambda step: False,
) -> tuple[State, int]:
    """Update `state` from `step` to `schedule.end`; returns the last state and step.

    Metrics are read one update late, so that the next one is already under way. `should_stop` is asked after every
    update, with its number; when it says so, the state is saved and the loop returns early. Where the observer's
    verdict ends the run, that update is its last one, with all that comes after a last update.
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
            report(at)

    def report(at: int) -> None:
        seconds, steps = clock.lap()
        observer.stats(at, window, seconds, steps)
        window.steps, window.values = 0, {}

    clock.start()
    while step < schedule.end:
        state, metrics = train_step(state, next(batches))
        settle()
        step += 1
        pending = (step, metrics)
        stopping = should_stop(step)
        last = step == schedule.total_steps
        evaluating = last or step % schedule.eval_period == 0
        period = schedule.infer_eval_period
        predicting = period is not None and (last or step % period == 0)
        saving = last or step % schedule.save_period == 0
        pausing = stopping or step == schedule.end
        if evaluating or predicting or saving or pausing:
            settle()
            clock.stop()
            if evaluating:
                observer.evaluate(step, state)
            if predicting:
                observer.infer_eval(step, state)
            verdict = observer.judge(step)
            if verdict.end and not last:
                last = True
                if not evaluating:
                    observer.evaluate(step, state)
                if period is not None and not predicting:
                    observer.infer_eval(step, state)
                if window.steps:
                    clock.start()
                    report(step)
            saving |= last or verdict.save
            if saving or pausing:
                observer.save(step, state, window, passing=not saving)
            clock.start()
        if stopping or last:
            break
    return state, step
