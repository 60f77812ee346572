"""The kinds of experiments with a plan, and the kind of an experiment."""

from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.paths import shown
from t5xpg.study.matrix.matrix import Matrix
from t5xpg.study.speedrun import Speedrun
from t5xpg.study.study import PlannedExperiment
from t5xpg.study.sweep.sweep import Sweep

KINDS: tuple[type[PlannedExperiment[Any]], ...] = (Sweep, Matrix, Speedrun)
PLAN_FILES = " or ".join(kind.plan_file for kind in (Sweep, Matrix))


def study_of(experiment: str, folder: Path) -> PlannedExperiment[Any] | None:
    """The plan of an experiment, with its runs in `folder`; None for an experiment that is one run."""
    return next((kind(experiment, folder) for kind in KINDS if kind.is_planned(experiment)), None)


def require_one_run(home: Path) -> None:
    """Raise UserError for an experiment, in the folder `home`, that is many runs."""
    if kind := next((kind for kind in KINDS if (home / kind.plan_file).exists()), None):
        command = "speedrun-check ENTRY=…" if kind is Speedrun else f"sweep EXP={home.name} RUN={home.name}_again"
        message = f"{home.name} is many runs, those of {shown(home / kind.plan_file)}, without results of its own"
        raise UserError(f"{message} to compare with. They are trained again by: make {command}")
