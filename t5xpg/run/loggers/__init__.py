"""Loggers send a run's records to other services, and cannot change, slow or end the run.

`Experiment.loggers` holds them; gin names them (`gin/loggers/`). TensorBoard is always written (`run.records`). A
logger of your own is a class with `record`: docs/logging.md has one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base.metric_values import MetricValue


@dataclass(frozen=True)
class StartedRun:
    """A run as a logger sees it at its start.

    id: eight random hexadecimal digits, drawn at the first start with this logger and kept in the run's directory.
    folder: in the run's directory, for files of loggers. step: the update that this start continues from; 0 for a new
    run. settings: those of the experiment, flat: {"model.config.emb_dim": 128}. gin: every binding. facts:
    {"total_steps", "num_params", "devices"}.
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
    """Takes a run's records as they come. Override the methods you need; those of this class do nothing.

    All but `check` are called in a thread of the logger's own, one call at a time, so that waiting for a network costs
    the run nothing. An exception becomes one warning, and the run goes on without the logger.
    """

    def check(self) -> None:
        """Raise UserError where the logger cannot work at all. Called before the run starts, and by `make check`."""

    def start(self, run: StartedRun) -> int | None:
        """A process begins to train, or to go on.

        Returns the last step of the run that the logger's service has (-1 for none), if it can tell: records that were
        handed over may have been lost with their process. None to rely on the file with the last logged step.
        """
        return None

    def record(self, step: int, values: Mapping[str, MetricValue]) -> None:
        """All that was measured of the state after `step` updates: {"train/loss": 2.1, "validation/accuracy": 0.4}.

        Called once for each step with records, in their order, however often the run is stopped or killed: the next
        start hands over what is missing. Values are numbers; for metrics of tasks also texts, histograms and pictures
        (`t5xpg.base.metric_values`). Names are those in TensorBoard.
        """

    def finish(self) -> None:
        """The process ends. Called after the last record."""
