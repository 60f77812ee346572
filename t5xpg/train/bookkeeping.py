"""What happens around the updates of a training run: records, the progress line, evaluation, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.kill_points import phase, tell
from t5xpg.base.paths import shown
from t5xpg.base.progress import Progress, duration
from t5xpg.distributed import hardware
from t5xpg.evaluate.measurements import Measurements
from t5xpg.evaluate.predicting import SPLIT
from t5xpg.run.batch_trail import BatchTrail
from t5xpg.run.best import Best, Values, values_of
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.directory import RunDirectory
from t5xpg.run.loggers import Logger, StartedRun
from t5xpg.run.loggers.fanout import LoggerFanout, start_threads
from t5xpg.run.metrics import Window, said
from t5xpg.run.records import JsonlWriter, TensorBoardWriter, Unwritten, to_json
from t5xpg.train import nonfinite
from t5xpg.train.loop import Verdict
from t5xpg.train.nonfinite import NonFinite


@dataclass(frozen=True)
class Cost:
    """What one update costs, for rates: padded tokens (inputs and targets) and floating point operations."""

    tokens: int
    flops: float
    peak_flops: float | None  # of all devices together, a second


class PositionedStream(Protocol):
    """What is asked of a stream of batches, live or recorded, but the batches."""

    @property
    def waited(self) -> float:
        """Seconds that were waited for batches."""

    def state(self) -> dict[str, np.ndarray]:
        """The position of the next batch."""


@dataclass
class Tolerance:
    """How many updates may have a loss or gradient that is not finite, and how many had."""

    allowed: int
    parameter_names: tuple[str, ...]
    skipped: int = 0


class RunObserver:
    """The `loop.Observer` of a training run. Metrics that the run determines and timings go to different files."""

    def __init__(
        self,
        *,
        directory: RunDirectory,
        step: int,
        cost: Cost,
        stream: PositionedStream,
        trail: BatchTrail,
        tolerance: Tolerance,
        best: Best,
        checkpointer: Checkpointer,
        measurements: Measurements,
        checkpoint_meta: Mapping[str, Any],
        progress: Progress,
        loggers: Sequence[Logger] = (),
        started: StartedRun | None = None,
    ) -> None:
        """loggers: get the records of `started`, the run without an id."""
        assert started is not None or not loggers
        self._cost = cost
        self._stream = stream
        self._trail = trail
        self._tolerance = tolerance
        self._best = best
        self._directory = directory
        self._checkpointer = checkpointer
        self._measurements = measurements
        self._meta = dict(checkpoint_meta)
        self._progress = progress
        written = directory.written
        self._metrics = JsonlWriter(directory.metrics_jsonl) if written else Unwritten()
        self._timing = JsonlWriter(directory.timing_jsonl) if written else Unwritten()
        # A run that never saved starts over: nothing of its records holds any more.
        kept = step if step > 0 else -1
        self._metrics.truncate_after(kept)
        self._timing.truncate_after(kept)
        records = (directory.metrics_jsonl, directory.timing_jsonl)
        threads = start_threads(loggers, started, *records, progress.print) if started and written else ()
        tensorboard = TensorBoardWriter(directory.tensorboard, after_step=kept) if written else Unwritten()
        self._audience = LoggerFanout(tensorboard, threads)
        self._validation: tuple[int, Mapping[str, Any]] | None = None
        self._measured: tuple[int, Values] = (-1, {})  # for checkpoints: all numbers measured at one step
        self._waited = stream.waited
        self._last_step_ended: float | None = None
        # moving averages, for the progress line alone
        self._seconds_per_step: float | None = None
        self._waited_per_step = 0.0
        self._waited_shown = stream.waited
        self._infer_eval_seconds = 0.0  # of the last one

    def complete(self) -> None:
        """Nothing is left to be recorded of the last step."""
        self._audience.complete()

    def close(self) -> None:
        """Close the records."""
        self._trail.close()
        self._metrics.close()
        self._timing.close()
        self._audience.close()

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> bool:
        """Show one update; returns whether it counts.

        Raises UserError where its loss or gradient is not finite, and that was tolerated often enough.
        """
        tell("end", "step", step)
        found = nonfinite.find(step, metrics, self._tolerance.parameter_names)
        if found is not None:
            self._skip(found, metrics)
            return False
        tokens = max(metrics["weights"], 1.0)
        loss, accuracy = metrics["cross_entropy"] / tokens, metrics["correct"] / tokens
        validation = f"  validation {self._validation[1]['loss']:.3f}" if self._validation else ""
        took = f"  metrics took {duration(self._infer_eval_seconds)}" if self._infer_eval_seconds else ""
        self._progress.advance(1, f"loss {loss:.3f}  accuracy {accuracy:.3f}{self._rate()}{validation}{took}")
        return True

    def _skip(self, found: NonFinite, metrics: Mapping[str, Any]) -> None:
        """Keep the batch of an update that is not finite; raise UserError if there were too many of them."""
        kept = shown(nonfinite.keep(self._directory.nonfinite, found, metrics, self._trail.batch_of(found.step)))
        allowed = self._tolerance.allowed
        if self._tolerance.skipped >= allowed:
            before = f" SKIP_NONFINITE={allowed} such steps were passed over before it." if allowed else ""
            raise UserError(
                f"{found} ({found.where()}); nothing of that step was saved, and its batch lies in {kept}.{before} "
                "Lower LEARNING_RATE, clip with max_gradient_norm, or set SKIP_NONFINITE to pass over some steps "
                "(these change the run: name another run directory with RUN=…)."
            )
        self._tolerance.skipped += 1
        self._metrics.write({"step": found.step, "split": "skipped", "parameters": list(found.parameters)})
        self._progress.advance(1, "not finite: skipped")
        self._progress.print(
            f"{found} ({found.where()}): skipped, {self._tolerance.skipped} of {allowed}; its batch lies in {kept}"
        )

    def stats(self, step: int, window: Window, seconds: float, steps: int) -> None:
        """Record the means of a window, and the speed of the updates since the last one."""
        self._trail.flush()
        if not window.steps:  # all of them were skipped
            return
        summary = {"step": step, "split": "train", **window.summary()}
        self._metrics.write(summary)
        self._audience.scalars(step, _numbers(summary), prefix="train")
        if not steps or seconds <= 0:
            return
        waited, self._waited = self._stream.waited - self._waited, self._stream.waited
        tokens_per_second = self._cost.tokens * steps / seconds
        flops_per_second = self._cost.flops * steps / seconds
        timing: dict[str, Any] = {
            "step": step,
            "time": time.time(),
            "seconds_per_step": seconds / steps,
            "steps": steps,
            "tokens_per_second": tokens_per_second,
            "target_tokens_per_second": window.summary()["target_tokens"] / window.steps * steps / seconds,
            "flops_per_second": flops_per_second,
            "share_of_peak": hardware.share_of_peak(flops_per_second, self._cost.peak_flops),
            "waited_for_data": waited / seconds,
        }
        self._timing.write(timing)
        self._audience.scalars(step, _numbers(timing), prefix="timing")

    def _rate(self) -> str:
        """Of the last steps: tokens a second, share of the hardware's peak (MFU), share of time waiting for data."""
        now, waited = time.perf_counter(), self._stream.waited
        if self._last_step_ended is not None:
            seconds, of_it_waited = now - self._last_step_ended, waited - self._waited_shown
            before = self._seconds_per_step
            self._seconds_per_step = seconds if before is None else 0.9 * before + 0.1 * seconds
            self._waited_per_step = 0.9 * self._waited_per_step + 0.1 * of_it_waited
        self._last_step_ended, self._waited_shown = now, waited
        if not self._seconds_per_step:
            return ""
        text = f"  {self._cost.tokens / self._seconds_per_step:,.0f} tokens/s"
        share = hardware.share_of_peak(self._cost.flops / self._seconds_per_step, self._cost.peak_flops)
        if share is not None:
            text += f"  MFU {share:.0%}"
        return f"{text}  data wait {min(1.0, self._waited_per_step / self._seconds_per_step):.0%}"

    def evaluate(self, step: int, state: Any) -> None:
        """Measure the validation split and record it, and that of every task of a mixture by itself."""
        self._last_step_ended = None
        with phase("evaluate", step):
            summary = self._measurements.loss(state.params)
            by_task = self._measurements.loss_by_task(state.params)
        self._validation = (step, summary)
        record = {"step": step, "split": "validation", **summary}
        self._write(record)
        self._audience.scalars(step, _numbers(record), prefix="validation")
        for task, values in by_task.items():
            self._write({"step": step, "split": "validation", "task": task, **values})
            self._audience.scalars(step, values, prefix=f"validation/{task}")
        self._require_best(of_validation=True)
        self._audience.flush()
        self._progress.print(f"step {step:,}: validation {said(summary)}")
        if by_task:
            losses = ", ".join(f"{task} {values['loss']:.3f}" for task, values in by_task.items())
            self._progress.print(f"step {step:,}: validation loss by task: {losses}")

    def infer_eval(self, step: int, state: Any) -> None:
        """Measure the metrics of the tasks and record them; their time goes to the timings."""
        self._last_step_ended = None
        began = time.perf_counter()
        with phase("evaluate", step):
            measured = self._measurements.metrics(state.params, step)
        self._infer_eval_seconds = seconds = time.perf_counter() - began
        for one in measured:
            self._write(one.to_record(step))
            self._audience.values(step, one.metrics, prefix=f"{SPLIT}/{one.task}")
            self._progress.print(f"step {step:,}: {one}")
        self._require_best(of_validation=False)
        self._timing.write({"step": step, "time": time.time(), "infer_eval_seconds": seconds})
        self._audience.scalars(step, {"infer_eval_seconds": seconds}, prefix="timing")
        self._audience.flush()

    def _write(self, record: Mapping[str, Any]) -> None:
        """Record an evaluation, and keep its numbers for the checkpoint of its step."""
        written = to_json(record)  # what a process that goes on reads again
        self._metrics.write(written)
        step, values = written["step"], values_of(written)
        at, before = self._measured
        self._measured = (step, {**(before if at == step else {}), **values})
        self._best.add(step, values)

    def _require_best(self, *, of_validation: bool) -> None:
        """Raise UserError where the metric that the run is selected by should just have been measured, and was not."""
        selection = self._best.selection
        if selection is not None and selection.of_validation == of_validation:
            selection.require(self._measured[1])

    def judge(self, step: int) -> Verdict:
        """A checkpoint of the best evaluation so far; and the end, where patience is at its own."""
        return Verdict(save=self._best.to_keep(step), end=self._best.ends(step))

    def save(self, step: int, state: Any, window: Window, passing: bool) -> None:
        """Write a checkpoint in the background: the state, the position in the data, the unfinished window.

        Raises UserError where a parameter is not finite: an update can overflow though its gradient did not.
        """
        self._last_step_ended = None
        bad = nonfinite.nonfinite_parameters(state.params)
        if bad:
            raise UserError(
                f"After step {step} {', '.join(bad[:5])}{' and more' if len(bad) > 5 else ''} hold values that are not "
                "finite; nothing of it was saved. Lower LEARNING_RATE."
            )
        self._trail.flush()
        at, measured = self._measured
        metrics = {name: math.nan if value is None else value for name, value in measured.items()}
        meta = {**self._meta, "window": window.to_json(), "skipped": self._tolerance.skipped}
        self._checkpointer.save(
            step, state, self._stream.state(), meta, metrics if at == step else None, passing=passing
        )


def _numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("step", "split", "time")}
