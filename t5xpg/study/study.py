"""Many runs of one experiment: `make sweep` trains them, `make report` publishes their results.

A plan in the experiment's folder (`sweep` or `matrix`) says what is trained. Its runs are processes, in stages; a stage
that was interrupted continues where it stopped. The results are one JSON value, the board, from which the page is made.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from t5xpg.base import locks
from t5xpg.base.errors import UserError
from t5xpg.base.paths import shown
from t5xpg.experiment import config
from t5xpg.run import provenance
from t5xpg.run.command_options import options_for
from t5xpg.run.report import Board, Page
from t5xpg.study import runs
from t5xpg.study.launchers import Launcher
from t5xpg.study.plan_file import Plan, read
from t5xpg.study.runs import StudyRun, check_same_text, sources

FORMAT = 1  # of boards
AnyPlan = TypeVar("AnyPlan", bound=Plan)


class PlannedExperiment(ABC, Generic[AnyPlan]):
    """An experiment with a plan beside its gin file, its runs in the folder `folder`, and a page of its own."""

    plan_file: ClassVar[str]
    plan_model: type[AnyPlan]
    page: ClassVar[Page]

    def __init__(self, experiment: str, folder: Path) -> None:
        self.name, gin_file = config.find_experiment(experiment)
        self.experiment, self.folder = experiment, folder
        self.home = gin_file.parent
        self.plan_path = self.home / self.plan_file

    @classmethod
    def is_planned(cls, experiment: str) -> bool:
        """True if the experiment has a plan of this kind."""
        return (config.find_experiment(experiment)[1].parent / cls.plan_file).exists()

    @cached_property
    def plan(self) -> AnyPlan:
        """The plan. Raises UserError for mistakes in it."""
        return read(self.plan_path, self.plan_model)

    def lock(self) -> AbstractContextManager[None]:
        """Hold the folder of the runs. Raises UserError where another process does."""
        advice = "Wait for it, or name another with RUN=…"
        return locks.hold(self.folder / ".lock", doing=f"working in {self.folder}", instead=advice)

    @abstractmethod
    def publish(self, *, allow_changed: bool = False) -> Path:
        """Write the board and the page into the experiment's folder; returns the README's path."""


class Study(PlannedExperiment[AnyPlan]):
    """A plan whose runs `make sweep` trains, all or those that are left."""

    @abstractmethod
    def runs(self) -> list[StudyRun]:
        """All runs that are known: later ones may depend on the results of earlier ones."""

    def check_cells(self, cells: str | None) -> None:
        """Raise UserError if a pattern chooses no runs. cells: as in `train`."""
        if cells is not None:
            raise UserError("CELLS=… chooses cells of a matrix.toml: the runs of a sweep depend on each other.")

    @abstractmethod
    def stages(self, cells: str | None) -> Iterator[Sequence[StudyRun]]:
        """Yield groups of runs that are trained together; make what a group needs before it, and measure after it."""

    @abstractmethod
    def results(self, runs: Sequence[StudyRun]) -> Board:
        """What the board says of these runs."""

    def collect(self, runs: Sequence[StudyRun]) -> Board:
        """The board of these runs: everything that the page shows.

        Raises UserError if they were trained on different text, or with different vocabularies of one name.
        """
        check_same_text(runs)
        return {"format": FORMAT, "experiment": self.name, **self.results(runs), "sources": sources(runs)}

    @abstractmethod
    def summary(self, board: Board) -> Iterable[str]:
        """The board for a terminal."""

    def train(self, *, jobs: int, cells: str | None, launcher: Launcher) -> None:
        """Train the unfinished runs, each in a folder of its own, measure them, and print the results so far.

        jobs: runs at a time; they share the cores, whose number decides the order of sums. cells: a pattern for names
        of a matrix's cells, such as "*,lm,*"; None for all. launcher: starts their processes. Raises UserError for a
        mistake in the plan, and for a run that was started with other settings than the plan has now.
        """
        self.check_cells(cells)
        trained: list[StudyRun] = []
        with self.lock():
            for stage in self.stages(cells):
                runs.train(stage, jobs=jobs, label=self.plan_path.stem, launcher=launcher)
                trained += stage
            board = self.collect(trained)
        for line in self.summary(board):
            print(line)
        print(f"publish it: make report {options_for(self.experiment, self.folder)}")

    def publish(self, *, allow_changed: bool = False) -> Path:
        """Write the board, the pictures and the README's block into the experiment's folder; returns the README's path.

        Unfinished runs are left out, and the page says so. Raises UserError if nothing is done and, unless
        `allow_changed`, if a run was not trained with the code of one commit (`run.provenance`); runs may have
        different ones.
        """
        planned_runs = self.runs()
        for run in planned_runs if not allow_changed else ():
            if run.directory.exists():
                starts = provenance.counting_starts(run.directory.read())
                provenance.require_commit(shown(run.path), [start["git"] for start in starts])
        board = self.collect(planned_runs)
        if not board["runs_done"]:
            options = options_for(self.experiment, self.folder)
            raise UserError(f"No run of {self.name} is done in {shown(self.folder)}. Train: make sweep {options}")
        return self.page.write(self.home, self.with_published(board))

    def with_published(self, board: Board) -> Board:
        """The board with missing parts taken from an earlier one; unchanged, unless a kind overrides it."""
        return board
