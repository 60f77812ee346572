"""The kinds of studies, and which one an experiment is."""

from pathlib import Path

from t5xpg.study.engine import Study
from t5xpg.study.matrix import Matrix
from t5xpg.study.sweep import Sweep

KINDS: tuple[type[Study], ...] = (Sweep, Matrix)
PLAN_FILES = " or ".join(kind.plan_file for kind in KINDS)


def study_of(experiment: str, folder: Path) -> Study | None:
    """The study of an experiment, with its runs in `folder`; None for an experiment that is one run."""
    return next((kind(experiment, folder) for kind in KINDS if kind.is_planned(experiment)), None)
