"""MLflow: LOGGER=mlflow. The package (mlflow or mlflow-skinny) is an optional one, and imported when a run starts."""

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from t5xpg.base.environment import require_package
from t5xpg.base.metric_values import MetricValue, is_number
from t5xpg.run.loggers import Logger, StartedRun

_RUN_ID = "t5xpg.run_id"  # the tag by which a run is found again
_MOST_PARAMETERS = 100  # of one request to the server


@dataclass
class MLflow(Logger):
    """A run of MLflow for each run directory; a run that goes on continues it. Numbers only.

    tracking_uri: a server or a database; None for MLFLOW_TRACKING_URI, or MLflow's own default. experiment: the name of
    the experiment in MLflow; None for the name of ours.
    """

    tracking_uri: str | None = None
    experiment: str | None = None
    _client: Any = field(default=None, init=False, repr=False)
    _entities: Any = field(default=None, init=False, repr=False)
    _run_id: str = field(default="", init=False, repr=False)

    def check(self) -> None:
        """Raise UserError where the package is not installed."""
        require_package("LOGGER=mlflow", "mlflow", "mlflow-skinny")

    def start(self, run: StartedRun) -> int | None:
        """Begin the run, or find it by its id and continue it."""
        self._entities = entities = importlib.import_module("mlflow.entities")
        self._client = client = importlib.import_module("mlflow").MlflowClient(self.tracking_uri)
        name = self.experiment or run.experiment
        known = client.get_experiment_by_name(name)
        experiment_id = known.experiment_id if known else client.create_experiment(name)
        runs = client.search_runs([experiment_id], f"tags.`{_RUN_ID}` = '{run.id}'")
        if runs:
            self._run_id = runs[0].info.run_id
            client.update_run(self._run_id, status="RUNNING")
            return None
        created = client.create_run(experiment_id, tags={_RUN_ID: run.id}, run_name=run.directory.name)
        self._run_id = created.info.run_id
        settings = [entities.Param(setting, str(value)[:500]) for setting, value in run.settings.items()]
        for begin in range(0, len(settings), _MOST_PARAMETERS):
            client.log_batch(self._run_id, params=settings[begin : begin + _MOST_PARAMETERS])
        return None

    def record(self, step: int, values: Mapping[str, MetricValue]) -> None:
        """Log one value of each metric."""
        metric, now = self._entities.Metric, int(time.time() * 1000)
        metrics = [metric(name, float(value), now, step) for name, value in values.items() if is_number(value)]
        self._client.log_batch(self._run_id, metrics=metrics)

    def finish(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._run_id)
