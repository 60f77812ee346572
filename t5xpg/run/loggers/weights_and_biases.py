"""Weights & Biases: LOGGER=wandb. The package is imported when a run starts."""

import importlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t5xpg.base.environment import require_package
from t5xpg.base.errors import UserError
from t5xpg.base.files import write_text
from t5xpg.base.metric_values import Histogram, Image, MetricValue
from t5xpg.run.loggers import Logger, StartedRun

_TIMEOUT = 50.0  # seconds to begin and to end; less than what the end of a run waits for a logger
_LAST_STEP = "last_step.txt"  # ours, in the folder of an offline process that has ended in order


def last_offline_step(folder: Path, run_id: str) -> int:
    """The last step in the offline folders of a run, one for each process; -1 for none.

    Which rows reached the folder of a killed process is unknown: it is removed, and its steps are logged again.
    """
    steps = [-1]
    for path in folder.glob(f"wandb/offline-run-*-{run_id}"):
        if (path / _LAST_STEP).is_file():
            steps.append(int((path / _LAST_STEP).read_text(encoding="utf-8")))
        else:
            shutil.rmtree(path)
    return max(steps)


@dataclass
class WeightsAndBiases(Logger):
    """A run of Weights & Biases for each run directory; a run that goes on continues it at the step after its last one.

    Fields are as in `wandb.init`; None for the value of the variable (WANDB_PROJECT, WANDB_MODE, …). mode: "online",
    "offline" or "disabled". Steps are updates. Its files lie in the run's directory.
    """

    project: str | None = None  # t5xpg where no variable says another
    entity: str | None = None
    name: str | None = None  # of the run; the run directory's
    group: str | None = None
    tags: tuple[str, ...] = ()
    mode: str | None = None
    _wandb: Any = field(default=None, init=False, repr=False)
    _run: Any = field(default=None, init=False, repr=False)
    _offline_step: int | None = field(default=None, init=False, repr=False)  # the last one, of an offline run

    def check(self) -> None:
        """Raise UserError if the package is not installed, or `mode` is unknown."""
        if self.mode not in (None, "online", "offline", "disabled"):
            raise UserError(f"WANDB_MODE is {self.mode!r}: it must be online, offline, disabled or None.")
        require_package("LOGGER=wandb", "wandb")

    def start(self, run: StartedRun) -> int | None:
        """Begin the run, or continue it."""
        self._wandb = wandb = importlib.import_module("wandb")
        mode = self.mode or wandb.setup(settings=wandb.Settings(silent=True)).settings.mode
        # no question on the terminal: that is the run's
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            raise UserError("no key: set WANDB_API_KEY, type `wandb login`, or use WANDB_MODE=offline")
        if mode == "offline":
            self._offline_step = last_offline_step(run.folder, run.id)
        self._run = wandb.init(
            project=self.project or os.environ.get("WANDB_PROJECT") or "t5xpg",
            entity=self.entity,
            name=self.name or os.environ.get("WANDB_NAME") or run.directory.name,
            group=self.group,
            tags=list(self.tags) or None,
            id=run.id,
            resume="allow",
            mode=self.mode,
            dir=str(run.folder),
            config={**run.settings, **run.facts, "experiment": run.experiment},
            settings=wandb.Settings(
                console="off", silent=True, init_timeout=_TIMEOUT, finish_timeout=_TIMEOUT, finish_timeout_raises=True
            ),
        )
        if mode == "online":
            return int(self._run.starting_step) - 1
        return self._offline_step

    def record(self, step: int, values: Mapping[str, MetricValue]) -> None:
        """Log one row."""
        self._run.log({name: self._wandb_value(value) for name, value in values.items()}, step=step, commit=True)
        if self._offline_step is not None:
            self._offline_step = step

    def finish(self) -> None:
        """Hand over what is left."""
        self._run.finish()
        if self._offline_step is not None:
            write_text(Path(self._run.dir).parent / _LAST_STEP, str(self._offline_step))

    def _wandb_value(self, value: MetricValue) -> Any:
        if isinstance(value, Histogram):
            counted = value.counted()
            return self._wandb.Histogram(np_histogram=counted) if counted[0].size else None  # nothing was finite
        if isinstance(value, Image):
            return [self._wandb.Image(picture) for picture in value.pictures[: value.max_outputs]]
        return value if isinstance(value, int | float | str) else None
