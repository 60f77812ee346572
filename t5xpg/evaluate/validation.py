"""Teacher-forced loss over a held-out split: over the whole split, and over every task of a mixture."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.progress import Progress
from t5xpg.data.recording.reader import RecordedStream
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import Stream, TaskDescription
from t5xpg.run.metrics import Window

_INPUTS, _TARGETS = "encoder_input_tokens", "decoder_target_tokens"
KEPT_BYTES = 64 * 2**20
EXCHANGED_BATCHES = 8  # that are measured once more, with their encoder rows exchanged

AnyStream = Stream | RecordedStream
Summary = Mapping[str, float | int]
EvalStep = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]
OnDevices = Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]]


class NothingToMeasureError(UserError):
    """A split that has no target."""


class Validation:
    """Measures parameters on every batch of a finite stream; the same batches each time.

    The batches are kept in memory where they fit into `kept_bytes`, and read again otherwise. stream: the stream, or a
    function that returns it, which is called at the first measurement.
    """

    def __init__(
        self,
        stream: AnyStream | Callable[[], AnyStream],
        eval_step: EvalStep,
        on_devices: OnDevices,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._given = stream
        self._eval_step = eval_step
        self._on_devices = on_devices
        self._kept_bytes = kept_bytes
        self._kept: list[Mapping[str, np.ndarray]] | None = None

    def measure(self, params: Any, progress: Progress | None = None) -> dict[str, float | int]:
        """`metrics.Window.summary` over the split, "batches", and the "encoder_use" of its first EXCHANGED_BATCHES.

        "encoder_use" says whether the model uses its encoder: the loss of batches whose encoder rows are `exchanged`,
        minus their own loss, in nats per target token. About 0 means that the decoder is a language model of the
        targets alone. Missing where no batch can be exchanged. progress: counts batches. Raises NothingToMeasureError
        where the split gives no target.
        """
        window = Window()
        rise = exchanged_tokens = 0.0  # nats that exchanged rows cost, and the target tokens of these batches
        for batch in self._batches():
            own = jax.device_get(self._eval_step(params, self._on_devices(batch)))
            window.add(own)
            if progress is not None:
                progress.advance()
            if window.steps <= EXCHANGED_BATCHES and (other := exchanged(batch)) is not None:
                misled = jax.device_get(self._eval_step(params, self._on_devices(other)))
                rise += float(misled["cross_entropy"]) - float(own["cross_entropy"])
                exchanged_tokens += float(own["weights"])
        if not window.values.get("weights"):
            config = self._stream.config
            raise NothingToMeasureError(
                f"The split {config.split!r} of {config.mixture_or_task_name} gave no target to measure: it is too "
                f"small for lengths of {dict(config.task_feature_lengths)}. Export more text."
            )
        summary = window.summary()
        summary["batches"] = window.steps
        if exchanged_tokens:
            summary["encoder_use"] = rise / exchanged_tokens
        return summary

    @functools.cached_property
    def _stream(self) -> AnyStream:
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
            if size <= self._kept_bytes:
                kept.append(batch)
            yield batch
        if size <= self._kept_bytes:
            self._kept = kept


def exchanged(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """The batch with its encoder rows [S] exchanged: each example gets the row of the one before it, the first one that
    of the last. Rows of padding, which have no targets, stay as they are. None with fewer than two examples, for packed
    batches, for those without encoder and decoder, and on several hosts, which each hold a part of a batch."""
    if not {_INPUTS, _TARGETS} <= set(batch) or "encoder_segment_ids" in batch or jax.process_count() > 1:
        return None
    rows = np.flatnonzero((batch[_TARGETS] != 0).any(axis=1))
    if len(rows) < 2:
        return None
    inputs = batch[_INPUTS].copy()
    inputs[rows] = batch[_INPUTS][np.roll(rows, 1)]
    return {**batch, _INPUTS: inputs}


class TaskValidation:
    """Measures parameters on the split of each task of a mixture by itself; measures nothing for a single task.

    streams: returns the stream of each task, by the names from `task_configs`; called at the first measurement.
    """

    def __init__(
        self, streams: Callable[[], Mapping[str, AnyStream]], eval_step: EvalStep, on_devices: OnDevices
    ) -> None:
        self._streams = streams
        self._eval_step = eval_step
        self._on_devices = on_devices

    @functools.cached_property
    def _validations(self) -> dict[str, Validation]:
        streams = self._streams()
        share = KEPT_BYTES // max(1, len(streams))
        return {task: Validation(stream, self._eval_step, self._on_devices, share) for task, stream in streams.items()}

    def measure(self, params: Any, progress: Progress | None = None) -> dict[str, Summary]:
        """{task: as `Validation.measure`}. A task whose split gives no target is left out, with a message."""
        measured: dict[str, Summary] = {}
        for task, validation in list(self._validations.items()):
            try:
                measured[task] = validation.measure(params, progress)
            except NothingToMeasureError as error:
                Progress.print(f"{error} Its loss is left out.")
                del self._validations[task]
        return measured


def task_configs(config: DatasetConfig, description: TaskDescription) -> list[DatasetConfig]:
    """One dataset for each task of a mixture; none for a single task. description: the description of `config`."""
    if description.tasks == (description.name,):
        return []
    return [dataclasses.replace(config, mixture_or_task_name=task) for task in description.tasks]
