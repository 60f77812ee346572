"""All who see a run's records besides its JSON lines: TensorBoard, and the loggers that the experiment names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.loggers import Logger, StartedRun
from t5xpg.loggers.records import Values, named, recorded
from t5xpg.loggers.teller import Teller
from t5xpg.loggers.told import Told
from t5xpg.metric_values import MetricValue
from t5xpg.writers import TensorBoardWriter, Unwritten


class Audience:
    """Has the methods of a `TensorBoardWriter`. Loggers are told of a step when all of it is known."""

    def __init__(self, tensorboard: TensorBoardWriter | Unwritten, tellers: Sequence[Teller] = ()) -> None:
        self._tensorboard = tensorboard
        self._tellers = tellers
        self._step = -1
        self._values: Values = {}

    def scalars(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        """Numbers, as `prefix/name`."""
        self._tensorboard.scalars(step, values, prefix)
        self._gather(step, values, prefix)

    def values(self, step: int, values: Mapping[str, MetricValue], prefix: str) -> None:
        """Metrics of tasks, which can be more than numbers, as `prefix/name`."""
        self._tensorboard.values(step, values, prefix)
        self._gather(step, values, prefix)

    def flush(self) -> None:
        """Hand what was recorded to the system."""
        self._tensorboard.flush()

    def complete(self) -> None:
        """The last step has no more records. Without this, the next start of the run tells of it."""
        if self._values:
            for teller in self._tellers:
                teller.record(self._step, self._values)
            self._values = {}

    def close(self) -> None:
        """Close the files, and wait for the loggers."""
        self._tensorboard.close()
        for teller in self._tellers:
            teller.close()

    def _gather(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        if not self._tellers:
            return
        if step != self._step:
            self.complete()
            self._step = step
        self._values |= named(prefix, values)


def start(
    loggers: Sequence[Logger], run: StartedRun, metrics: Path, timing: Path, say: Callable[[str], None]
) -> list[Teller]:
    """Begin to tell loggers of a run, of what they were not told before.

    run: without its id, which is each logger's own. metrics, timing: the run's records until its step.
    """
    tellers = []
    for number, logger in enumerate(loggers):
        kind = type(logger).__name__
        count = sum(type(each).__name__ == kind for each in loggers[:number])
        told = Told(run.folder / f"{kind}{f'_{count}' if count else ''}.json")
        missed = recorded(metrics, timing, run.step) if run.step else ()
        tellers.append(Teller(logger, dataclasses.replace(run, id=told.id), told, missed, say))
    return tellers
