"""Teacher-forced loss over a held-out split."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from t5xpg.data.client import Stream
from t5xpg.data.recorded import RecordedStream
from t5xpg.errors import UserError
from t5xpg.metrics import Window

KEPT_BYTES = 64 * 2**20


class Validation:
    """Measures parameters on every batch of a finite stream; the same batches each time.

    They are kept in memory where they fit into 64 MiB, and read again otherwise. `stream` may be what
    gives the stream: it is called at the first measurement.
    """

    def __init__(
        self,
        stream: Stream | RecordedStream | Callable[[], Stream | RecordedStream],
        eval_step: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]],
        on_devices: Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]],
    ) -> None:
        self._given = stream
        self._eval_step = eval_step
        self._on_devices = on_devices
        self._kept: list[Mapping[str, np.ndarray]] | None = None

    def measure(self, params: Any) -> dict[str, float | int]:
        """`metrics.Window.summary` over the split. Raises UserError where the split gives no batch."""
        window = Window()
        for batch in self._batches():
            window.add(jax.device_get(self._eval_step(params, self._on_devices(batch))))
        if not window.values.get("weights"):
            config = self._stream.config
            raise UserError(
                f"The split {config.split!r} of {config.mixture_or_task_name} gave no target to measure: it is too "
                f"small for inputs of {config.task_feature_lengths['inputs']} tokens. Export more text."
            )
        summary = window.summary()
        summary["batches"] = window.steps
        return summary

    @functools.cached_property
    def _stream(self) -> Stream | RecordedStream:
        return self._given() if callable(self._given) else self._given

    def _batches(self) -> Iterator[Mapping[str, np.ndarray]]:
        if self._kept is not None:
            yield from self._kept
            return
        if self._stream.batches_read:
            self._stream.rewind()
        kept: list[Mapping[str, np.ndarray]] = []
        size = 0
        for batch in self._stream:
            size += sum(array.nbytes for array in batch.values())
            if size <= KEPT_BYTES:
                kept.append(batch)
            yield batch
        if size <= KEPT_BYTES:
            self._kept = kept
