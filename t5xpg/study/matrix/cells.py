"""The cells of a matrix as training runs: each with its configuration, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from t5xpg.base.errors import UserError
from t5xpg.experiment import Experiment, config
from t5xpg.experiment.config import LoadedConfig
from t5xpg.study.matrix.plan import Cell, Plan

_SHOWN = 3  # cells that share a mistake


@dataclass(frozen=True, eq=False)
class CellRun:
    """The training run of a cell; what `t5xpg.study.runs` trains."""

    cell: Cell
    loaded: LoadedConfig
    stage: ClassVar[str] = "matrix"

    @property
    def experiment(self) -> Experiment:
        return self.loaded.experiment

    @property
    def steps(self) -> int:
        return self.experiment.total_steps

    @property
    def overrides(self) -> list[str]:
        """What is laid over the experiment's gin file, as `t5xpg train` takes it."""
        files = [f"--gin_file={file}" for file in self.cell.gin_files]
        return [*files, *(f"--gin.{binding}" for binding in self.cell.bindings)]

    @property
    def folder(self) -> str:
        """Its folder in the matrix's."""
        return self.cell.name


def load(experiment: str, plan: Plan) -> list[CellRun]:
    """The runs of all cells. Raises UserError with every mistake in a configuration, once, and the cells that have it.

    The vocabularies have to be there: models take their sizes from them.
    """
    loaded: list[CellRun] = []
    mistakes: dict[str, list[str]] = {}
    for cell in plan.cells():
        found, problems = config.examine(experiment, cell.bindings, cell.gin_files)
        for problem in problems:
            mistakes.setdefault(problem, []).append(cell.name)
        if found is not None and not problems:
            loaded.append(CellRun(cell, found))
    if mistakes:
        lines = [f"{problem} (in {named(cells)})" for problem, cells in mistakes.items()]
        raise UserError("\n  ".join(["The cells of the matrix cannot be built:", *lines]))
    return loaded


def named(cells: Sequence[str]) -> str:
    """Names of cells, the first of them where they are many."""
    more = len(cells) - _SHOWN
    return " ".join(cells[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
