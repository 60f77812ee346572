"""What happens around the updates of a training run: records, the progress line, evaluation, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from t5xpg.checkpoints import Checkpointer
from t5xpg.data.client import Stream
from t5xpg.errors import UserError
from t5xpg.metrics import Window
from t5xpg.progress import Progress
from t5xpg.rundir import RunDirectory
from t5xpg.writers import JsonlWriter, TensorBoardWriter


@dataclass(frozen=True)
class Cost:
    """What one update costs, for rates: padded tokens (inputs and targets) and floating point operations."""

    tokens: int
    flops: float
    peak_flops: float | None  # of all devices together, a second


class RunObserver:
    """The `loop.Observer` of a training run. Metrics that the run determines and timings go to different files."""

    def __init__(
        self,
        *,
        directory: RunDirectory,
        step: int,
        cost: Cost,
        stream: Stream,
        checkpointer: Checkpointer,
        measure: Callable[[Any], Mapping[str, Any]],
        checkpoint_meta: Mapping[str, Any],
        progress: Progress,
    ) -> None:
        self._cost = cost
        self._stream = stream
        self._checkpointer = checkpointer
        self._measure = measure
        self._meta = dict(checkpoint_meta)
        self._progress = progress
        self._metrics = JsonlWriter(directory.metrics_jsonl)
        self._timing = JsonlWriter(directory.timing_jsonl)
        # A run that never saved starts over: nothing of its records holds any more.
        kept = step if step > 0 else -1
        self._metrics.truncate_after(kept)
        self._timing.truncate_after(kept)
        self._tensorboard = TensorBoardWriter(directory.tensorboard, after_step=kept)
        self._validation: tuple[int, Mapping[str, Any]] | None = None
        self._waited = stream.waited
        self._last_step_ended: float | None = None
        self._seconds_per_step: float | None = None  # a moving average, for the progress line alone

    def close(self) -> None:
        """Close the records."""
        self._metrics.close()
        self._timing.close()
        self._tensorboard.close()

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show one update. Raises UserError where its loss or gradient is not finite."""
        bad = [name for name in ("cross_entropy", "gradient_norm") if not math.isfinite(metrics.get(name, 0.0))]
        if bad:
            raise UserError(
                f"The {' and the '.join(name.replace('_', ' ') for name in bad)} of step {step} is not a finite "
                "number; nothing of that step was kept. Lower LEARNING_RATE, or clip with max_gradient_norm."
            )
        tokens = max(metrics["weights"], 1.0)
        loss, accuracy = metrics["cross_entropy"] / tokens, metrics["correct"] / tokens
        validation = f"  validation {self._validation[1]['loss']:.3f}" if self._validation else ""
        self._progress.advance(1, f"loss {loss:.3f}  accuracy {accuracy:.3f}{self._rate()}{validation}")

    def stats(self, step: int, window: Window, seconds: float, steps: int) -> None:
        """Record the means of a window, and the speed of the updates since the last one."""
        summary = {"step": step, "split": "train", **window.summary()}
        self._metrics.write(summary)
        self._tensorboard.scalars(step, _numbers(summary), prefix="train")
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
            "share_of_peak": flops_per_second / self._cost.peak_flops if self._cost.peak_flops else None,
            "waited_for_data": waited / seconds,
        }
        self._timing.write(timing)
        self._tensorboard.scalars(step, _numbers(timing), prefix="timing")

    def _rate(self) -> str:
        """Tokens a second and share of the peak, of the last steps."""
        now = time.perf_counter()
        if self._last_step_ended is not None:
            seconds = now - self._last_step_ended
            before = self._seconds_per_step
            self._seconds_per_step = seconds if before is None else 0.9 * before + 0.1 * seconds
        self._last_step_ended = now
        if not self._seconds_per_step:
            return ""
        text = f"  {self._cost.tokens / self._seconds_per_step:,.0f} tokens/s"
        if self._cost.peak_flops:
            text += f" ({self._cost.flops / self._seconds_per_step / self._cost.peak_flops:.0%} of peak)"
        return text

    def evaluate(self, step: int, state: Any) -> None:
        """Measure the validation split and record it."""
        self._last_step_ended = None
        summary = self._measure(state)
        self._validation = (step, summary)
        record = {"step": step, "split": "validation", **summary}
        self._metrics.write(record)
        self._tensorboard.scalars(step, _numbers(record), prefix="validation")
        self._tensorboard.flush()
        self._progress.print(
            f"step {step:,}: validation loss {summary['loss']:.3f} nats per target token, "
            f"{summary['bits_per_byte']:.3f} bits per target byte, accuracy {summary['accuracy']:.3f}"
        )

    def save(self, step: int, state: Any, window: Window) -> None:
        """Write a checkpoint in the background: the state, the position in the data, the unfinished window."""
        self._last_step_ended = None
        fresh = self._validation is not None and self._validation[0] == step
        metrics = {"validation_loss": float(self._validation[1]["loss"])} if fresh and self._validation else None
        self._checkpointer.save(step, state, self._stream.state(), {**self._meta, "window": window.to_json()}, metrics)


def _numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("step", "split", "time")}
