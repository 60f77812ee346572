"""The progress line of a training, and the rates behind it: tokens and operations a second, waiting for data."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

from t5xpg.base.cpu_load import OtherProcessesLoad
from t5xpg.base.progress import Progress, duration
from t5xpg.data.batch import Batch, longest_array
from t5xpg.data.stream.client import BatchStream
from t5xpg.distributed import hardware
from t5xpg.experiment.assembly import Assembly
from t5xpg.run.metrics import Window


class ProgressLine:
    """Shows and times updates, without evaluation and saving. No number that the run determines depends on it.

    The means of a window go into timing.jsonl; a moving average over the last updates is for the line alone.
    """

    def __init__(self, built: Assembly, stream: BatchStream, step: int) -> None:
        experiment = built.experiment
        self._line = Progress("train", experiment.total_steps, "steps", initial=step)
        self.print = self._line.print
        self._built, self._stream = built, stream
        self._sizes = {}  # length of a batch -> padded tokens of inputs and targets, operations of an update
        for length, bucket in experiment.train_dataset.buckets.items():
            rows, lengths = bucket.batch_size, bucket.task_feature_lengths
            self._sizes[length] = rows * sum(lengths.values()), rows * experiment.flops_per_example(lengths)
        self._tokens, self._flops = 0, 0.0  # of the last update
        self._peak_flops = self.measure_peak()
        self._other_load = OtherProcessesLoad()
        self._resumed_at = time.perf_counter()  # at the last report, or the end of the last pause
        self._seconds, self._steps, self._waited = 0.0, 0, stream.waited  # since the last report
        self._window_tokens, self._window_flops = 0, 0.0  # since then, too
        self._last_end: float | None = None
        self._mean_seconds: float | None = None
        self._mean_waited = 0.0
        self._last_waited = stream.waited
        self._update, self._validation, self._prediction = "", "", ""

    def __enter__(self) -> Self:
        self._line.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._line.__exit__(*error)

    def measure_peak(self, *, again: bool = False) -> float | None:
        """Floating point operations a second of all devices together; None if not known and not measurable."""
        return hardware.peak_flops_of_mesh(self._built.mesh, self._built.experiment.model.config.dtype, again=again)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of the block. There must be no report and no other pause in it."""
        self._seconds += time.perf_counter() - self._resumed_at
        self._last_end = None
        try:
            yield
        finally:
            self._resumed_at = time.perf_counter()

    def updated(self, metrics: Mapping[str, Any] | None, batch: Batch) -> None:
        """Show an update. metrics: its sums, or None if it was skipped. batch: the update's batch."""
        self._steps += 1
        self._tokens, self._flops = self._sizes[longest_array(batch)]
        self._window_tokens += self._tokens
        self._window_flops += self._flops
        if metrics is None:
            self._line.advance(1, "not finite: skipped")
            return
        tokens = max(metrics["weights"], 1.0)
        loss, accuracy = metrics["cross_entropy"] / tokens, metrics["correct"] / tokens
        self._update = f"loss {loss:.3f}  token accuracy {accuracy:.3f}{self._rates()}"
        self._line.advance(1, self._note())

    def validated(self, summary: Mapping[str, Any]) -> None:
        """Show a measurement of the validation split from now on."""
        self._validation = f"  validation {summary['loss']:.3f}"
        self._line.note = self._note()

    def predicted(self, seconds: float) -> None:
        """Show how long the metrics of the tasks took, from now on."""
        self._prediction = f"  metrics took {duration(seconds)}"
        self._line.note = self._note()

    def _note(self) -> str:
        return f"{self._update}{self._validation}{self._prediction}".strip()

    def _rates(self) -> str:
        """For the last updates: tokens a second, share of the hardware's peak (MFU), share of time waiting for data."""
        now, waited = time.perf_counter(), self._stream.waited
        if self._last_end is not None:
            seconds, previous_mean = now - self._last_end, self._mean_seconds
            self._mean_seconds = seconds if previous_mean is None else 0.9 * previous_mean + 0.1 * seconds
            self._mean_waited = 0.9 * self._mean_waited + 0.1 * (waited - self._last_waited)
        self._last_end, self._last_waited = now, waited
        if not self._mean_seconds:
            return ""
        text = f"  {self._tokens / self._mean_seconds:,.0f} tokens/s"
        share = hardware.share_of_peak(self._flops / self._mean_seconds, self._peak_flops)
        if share is not None:
            text += f"  MFU {share:.0%}"
        return f"{text}  data wait {min(1.0, self._mean_waited / self._mean_seconds):.0%}"

    def report(self, window: Window) -> dict[str, Any] | None:
        """The rates since the last report, during the updates of `window`; None if the window is empty."""
        now = time.perf_counter()
        seconds, steps = self._seconds + (now - self._resumed_at), self._steps
        waited, self._waited = self._stream.waited - self._waited, self._stream.waited
        tokens, flops = self._window_tokens, self._window_flops
        self._resumed_at, self._seconds, self._steps, self._window_tokens, self._window_flops = now, 0.0, 0, 0, 0.0
        if not window.steps:
            return None
        flops_per_second = flops / seconds
        return {
            "seconds_per_step": seconds / steps,
            "steps": steps,
            "tokens_per_second": tokens / seconds,
            "target_tokens_per_second": window.summary()["target_tokens"] / window.steps * steps / seconds,
            "flops_per_second": flops_per_second,
            "share_of_peak": hardware.share_of_peak(flops_per_second, self._peak_flops),
            "waited_for_data": waited / seconds,
            "used_by_others": self._other_load.share(),
        }
