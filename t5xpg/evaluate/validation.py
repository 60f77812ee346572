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
CACHE_BYTES = 64 * 2**20
ROTATED_BATCHES = 8  # that are measured once more, with rotated inputs

AnyStream = Stream | RecordedStream
Summary = Mapping[str, float | int]
EvalStep = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]
OnDevices = Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]]


class NothingToMeasureError(UserError):
    """A split that has no target."""


class Validation:
    """Measures parameters on every batch of a finite stream; the same batches each time.

    The batches are kept in memory if they fit into `cache_bytes`, and read again otherwise. stream: the stream, or a
    function that returns it, which is called at the first measurement.
    """

    def __init__(
        self,
        stream: AnyStream | Callable[[], AnyStream],
        eval_step: EvalStep,
        on_devices: OnDevices,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._source = stream
        self._eval_step = eval_step
        self._on_devices = on_devices
        self._cache_bytes = cache_bytes
        self._cache: list[Mapping[str, np.ndarray]] | None = None

    def measure(self, params: Any, progress: Progress | None = None) -> dict[str, float | int]:
        """`metrics.Window.summary` over the split, "batches", and the "encoder_use" of its first ROTATED_BATCHES.

        "encoder_use" says whether the model uses its encoder: the loss of batches with `rotate_inputs`, minus their own
        loss, in nats per target token. About 0 means that the decoder is a language model of the targets alone. Missing
        if no batch can be rotated. progress: counts batches. Raises NothingToMeasureError if the split gives no target.
        """
        window = Window()
        rise = rotated_tokens = 0.0  # nats that rotated inputs cost, and the target tokens of these batches
        for batch in self._batches():
            sums = jax.device_get(self._eval_step(params, self._on_devices(batch)))
            window.add(sums)
            if progress is not None:
                progress.advance()
            if window.steps <= ROTATED_BATCHES and (rotated := rotate_inputs(batch)) is not None:
                rotated_sums = jax.device_get(self._eval_step(params, self._on_devices(rotated)))
                rise += float(rotated_sums["cross_entropy"]) - float(sums["cross_entropy"])
                rotated_tokens += float(sums["weights"])
        if not window.values.get("weights"):
            config = self._stream.config
            raise NothingToMeasureError(
                f"The split {config.split!r} of {config.mixture_or_task_name} gave no target to measure: it is too "
                f"small for lengths of {dict(config.task_feature_lengths)}. Export more text."
            )
        summary = window.summary()
        summary["batches"] = window.steps
        if rotated_tokens:
            summary["encoder_use"] = rise / rotated_tokens
        return summary

    @functools.cached_property
    def _stream(self) -> AnyStream:
        return self._source() if callable(self._source) else self._source

    def _batches(self) -> Iterator[Mapping[str, np.ndarray]]:
        if self._cache is not None:
            yield from self._cache
            return
        if self._stream.batches_read:
            self._stream.rewind()
        batches: list[Mapping[str, np.ndarray]] = []
        size = 0
        for batch in self._stream:
            size += sum(array.nbytes for array in batch.values())
            if size <= self._cache_bytes:
                batches.append(batch)
            yield batch
        if size <= self._cache_bytes:
            self._cache = batches


def rotate_inputs(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """The batch with its encoder inputs [B, S] rotated by one example: a control for how much the decoder uses its
    encoder. The first example gets the inputs of the last. Rows of padding, which have no targets, stay as they are.
    None with fewer than two examples, for packed batches, for batches without encoder and decoder, and on several
    hosts, which each hold a part of a batch."""
    if not {_INPUTS, _TARGETS} <= set(batch) or "encoder_segment_ids" in batch or jax.process_count() > 1:
        return None
    rows = np.flatnonzero((batch[_TARGETS] != 0).any(axis=1))
    if len(rows) < 2:
        return None
    inputs = batch[_INPUTS].copy()
    inputs[rows] = batch[_INPUTS][np.roll(rows, 1)]
    return {**batch, _INPUTS: inputs}


def measure_tasks(
    validations: dict[str, Validation], params: Any, progress: Progress | None = None
) -> dict[str, Summary]:
    """{task: as `Validation.measure`}. A task whose split gives no target is left out, with a message, and removed from
    `validations`."""
    measured: dict[str, Summary] = {}
    for task, validation in list(validations.items()):
        try:
            measured[task] = validation.measure(params, progress)
        except NothingToMeasureError as error:
            Progress.print(f"{error} Its loss is left out.")
            del validations[task]
    return measured


def task_configs(config: DatasetConfig, description: TaskDescription) -> list[DatasetConfig]:
    """One dataset for each task of a mixture; none for a single task. description: the description of `config`."""
    if description.tasks == (description.name,):
        return []
    return [dataclasses.replace(config, mixture_or_task_name=task) for task in description.tasks]
