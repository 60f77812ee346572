"""The state of a resumable run, except its position in the data. A checkpoint holds both; nothing else changes."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from t5xpg.base import phases
from t5xpg.data.stream.client import BatchStream, NoBatchYetError
from t5xpg.distributed.group import Stop
from t5xpg.optim.state import TrainState
from t5xpg.run.best import Best, Values, values_of
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.metrics import Window

Position = dict[str, np.ndarray]  # in the data, see `Stream.state`
_SLOW_BATCH = 10.0  # seconds


@dataclass
class RunState:
    """After `step` updates: parameters and optimiser, the unfinished window of metrics, the best evaluation so far.

    skipped: the number of updates that were skipped because they were not finite. measured: the values measured after
    exactly this step, by the names of `best.values_of`.
    """

    step: int
    train: TrainState
    best: Best
    window: Window = field(default_factory=Window)
    skipped: int = 0
    measured: Values = field(default_factory=dict)

    @classmethod
    def restore(cls, checkpointer: Checkpointer, step: int, abstract: TrainState, best: Best) -> tuple[Self, Position]:
        """The state that `save` wrote after `step` updates, on the devices of `abstract`, and the position in the data.

        Raises UserError if it does not fit.
        """
        with phases.phase("restore", step):
            train, position, meta = checkpointer.restore(step, abstract)
        return cls(step, train, best, Window.from_json(meta["window"]), meta["skipped"]), position

    def save(
        self, checkpointer: Checkpointer, meta: Mapping[str, Any], position: Position, *, resume_only: bool
    ) -> None:
        """Write a checkpoint in the background; the arrays have been copied when this returns.

        meta: further facts for readers of the checkpoint. resume_only: see `Checkpointer.save`.
        """
        metrics = {name: math.nan if value is None else value for name, value in self.measured.items()}
        meta = {**meta, "window": self.window.to_json(), "skipped": self.skipped}
        checkpointer.save(self.step, self.train, position, meta, metrics, resume_only=resume_only)

    @contextlib.contextmanager
    def waiting_for_batches(self, stream: BatchStream, checkpointer: Checkpointer, stop: Stop) -> Iterator[None]:
        """End the block if a stop is requested and no batch comes: saving would need the position in the data.

        At once if the current step is saved already, or is 0; otherwise after the time that a slow batch may take.
        """
        stream.gives_up = lambda: (
            stop.overdue(_SLOW_BATCH) or (stop.overdue(0.0) and self.step in (0, *checkpointer.steps()))
        )
        with contextlib.suppress(NoBatchYetError):
            yield

    def advance(self, train: TrainState) -> None:
        """Take the state after one more update."""
        self.train = train
        self.step += 1
        self.measured = {}

    def measure(self, step: int, records: Iterable[Mapping[str, Any]]) -> Values:
        """Add the records of an evaluation after `step`, as in metrics.jsonl; returns their numbers by name."""
        values: Values = {}
        for record in records:
            numbers = values_of(record)
            self.best.add(step, numbers)
            values = {**values, **numbers}
        if step == self.step:
            self.measured = {**self.measured, **values}
        return values
