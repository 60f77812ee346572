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

    The means since the last report are shown, and go into timing.jsonl.
    """

    def __init__(self, built: Assembly, stream: BatchStream, step: int) -> None:
        experiment = built.experiment
        self._line = Progress("train", experiment.total_steps, "steps", initial=step)
        self.print = self._line.print
        self._stream = stream
        self._sizes = {}  # length of a batch -> padded tokens of inputs and targets, operations of an update
        for length, bucket in experiment.train_dataset.buckets.items():
            rows, lengths = bucket.batch_size, bucket.task_feature_lengths
            self._sizes[length] = rows * sum(lengths.values()), rows * experiment.flops_per_example(lengths)
        self._peak_flops = hardware.peak_flops_of_mesh(built.mesh, experiment.model.config.dtype)
        self._other_load = OtherProcessesLoad()
        self._update, self._validation, self._prediction = "", "", ""
        self._begin_window()

    def _begin_window(self) -> None:
        self._resumed_at = time.perf_counter()  # at the last report, or the end of the last pause
        self._seconds, self._steps, self._tokens, self._flops = 0.0, 0, 0, 0.0
        self._waited = self._stream.waited

    def __enter__(self) -> Self:
        self._line.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._line.__exit__(*error)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of the block. There must be no report and no other pause in it."""
        self._seconds += time.perf_counter() - self._resumed_at
        try:
            yield
        finally:
            self._resumed_at = time.perf_counter()

    def updated(self, metrics: Mapping[str, Any] | None, batch: Batch) -> None:
        """Show an update. metrics: its sums, or None if it was skipped. batch: the update's batch."""
        tokens, flops = self._sizes[longest_array(batch)]
        self._steps, self._tokens, self._flops = self._steps + 1, self._tokens + tokens, self._flops + flops
        if metrics is None:
            self._line.advance(1, "not finite: skipped")
            return
        tokens = max(metrics["weights"], 1.0)
        loss, accuracy = metrics["cross_entropy"] / tokens, metrics["correct"] / tokens
        rates = self._rates()
        mfu = "" if rates["share_of_peak"] is None else f"  MFU {rates['share_of_peak']:.0%}"
        self._update = (
            f"loss {loss:.3f}  token accuracy {accuracy:.3f}  {rates['tokens_per_second']:,.0f} tokens/s{mfu}"
            f"  data wait {min(1.0, rates['waited_for_data']):.0%}"
        )
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

    def _rates(self) -> dict[str, Any]:
        """The means since the last report. share_of_peak: the operations' share of the hardware's peak (MFU)."""
        seconds = self._seconds + (time.perf_counter() - self._resumed_at)
        return {
            "seconds_per_step": seconds / self._steps,
            "steps": self._steps,
            "tokens_per_second": self._tokens / seconds,
            "flops_per_second": self._flops / seconds,
            "share_of_peak": hardware.share_of_peak(self._flops / seconds, self._peak_flops),
            "waited_for_data": (self._stream.waited - self._waited) / seconds,
        }

    def report(self, window: Window) -> dict[str, Any] | None:
        """The rates since the last report, during the updates of `window`; None if the window is empty."""
        rates = self._rates() if window.steps else None
        self._begin_window()
        if rates is None:
            return None
        targets = window.summary()["target_tokens"] / window.steps / rates["seconds_per_step"]
        return {**rates, "target_tokens_per_second": targets, "used_by_others": self._other_load.share()}
