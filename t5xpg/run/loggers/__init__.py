"""Where a run's records go besides its own files: a logger sees them, and cannot change, slow or end the run.

`Experiment.loggers` holds them; gin names them (`gin/loggers/`). TensorBoard is always written (`writers`). A logger of
your own is a class with `record`: docs/logging.md has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base.metric_values import MetricValue

__all__ = ["Logger", "StartedRun"]


@dataclass(frozen=True)
class StartedRun:
    """What a logger is told of the run.

    id: eight hexadecimal digits, drawn when this logger first saw the run, and kept in the run's directory: the same
      however often the run is stopped. folder: in the run's directory, for files of loggers. step: the update after
      which this start goes on; 0 for a new run. settings: those of the experiment, flat: {"model.config.emb_dim": 128}.
      gin: every binding. facts: {"total_steps", "num_params", "devices"}.
    """

    experiment: str
    id: str
    directory: Path
    folder: Path
    step: int
    settings: Mapping[str, Any]
    gin: str
    facts: Mapping[str, Any]


class Logger:
    """Takes a run's records as they come. Override what you need; every method of this class does nothing.

    All but `check` are called in a thread of the logger's own, one call at a time, so that waiting for a network costs
    the run nothing. What they raise is said in one warning, and the run goes on without the logger.
    """

    def check(self) -> None:
        """Raise UserError where it cannot work at all. Called before the run is started, and by `make check`."""

    def start(self, run: StartedRun) -> int | None:
        """A process begins to train, or to go on.

        Returns the last step that the logger's own side has of the run (-1 for none), where it knows: what it said it
        took may have been lost with the process that took it. None to believe the run's directory.
        """
        return None

    def record(self, step: int, values: Mapping[str, MetricValue]) -> None:
        """All that was measured of the state after `step` updates: {"train/loss": 2.1, "validation/accuracy": 0.4}.

        Called once for each step with records, in their order, however often the run is stopped or killed: what was
        not told before that is told by the next start. Values are numbers, for metrics of tasks also texts, histograms
        and pictures (`t5xpg.base.metric_values`). Names are those in TensorBoard.
        """

    def finish(self) -> None:
        """The process ends; after the last record."""
