"""Matrices: one cell for every architecture, objective and vocabulary that belong together, a training run each."""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_of
from t5xpg.check import checks
from t5xpg.check.finding import Finding, report
from t5xpg.data.vocab.record import find_vocabularies
from t5xpg.data.vocab.sentinels import NAMED_TOKENS
from t5xpg.experiment import making
from t5xpg.experiment.recipe import Recipe
from t5xpg.run.report import Board
from t5xpg.study.matrix import unigrams
from t5xpg.study.matrix.board import PAGE, line, results, with_published
from t5xpg.study.matrix.plan import AXES, MatrixPlan, TrainedVocabulary
from t5xpg.study.runs import StudyRun, outcome
from t5xpg.study.study import Study

_SHOWN = 3  # names at most of the cells that share a mistake


class Matrix(Study[MatrixPlan]):
    """A matrix with its runs."""

    plan_file = "matrix.toml"
    plan_model = MatrixPlan
    page = PAGE

    def runs_of_cells(self) -> list[StudyRun]:
        """The runs of all cells, whatever their configurations."""
        return [self._run(labels) for labels in self.plan.cells()]

    def _run(self, labels: dict[str, str], bindings: Sequence[str] = ()) -> StudyRun:
        plan = self.plan
        vocabulary = plan.vocabularies[labels["vocabulary"]]
        entries = (vocabulary, plan.architectures[labels["architecture"]], plan.objectives[labels["objective"]])
        settings = [f"MIXTURE_OR_TASK_NAME={labels['task']}", *(one for entry in entries for one in entry.bindings)]
        gin_files = [file for entry in entries for file in entry.gin_files]
        path = self.folder / ",".join(labels[axis] for axis in AXES)
        return StudyRun(self.experiment, path, "matrix", labels, [*settings, *bindings], gin_files)

    def _missing_vocabularies(self) -> dict[str, TrainedVocabulary]:
        """The vocabularies that are to be trained first."""
        known = find_vocabularies(paths.data_directory())
        entries = self.plan.vocabularies.items()
        return {name: one.train for name, one in entries if one.train and self.plan.task_ending(name) not in known}

    def runs(self) -> list[StudyRun]:
        """The runs of all cells. Raises UserError with every mistake in a configuration, and the cells that have it."""
        runs = self.runs_of_cells()
        if lines := _with_cells((mistake, run.name) for run in runs for mistake in run.examined[1]):
            raise UserError("\n  ".join(["The cells of the matrix cannot be built:", *lines]))
        return runs

    def check_cells(self, cells: str | None) -> None:
        names = [run.name for run in self.runs_of_cells()]
        if not any(fnmatchcase(name, cells or "*") for name in names):
            raise UserError(f"CELLS={cells} is no cell of {self.name}: they are called {names[0]}, or * for any part.")

    def stages(self, cells: str | None) -> Iterator[Sequence[StudyRun]]:
        missing = self._missing_vocabularies()
        for name, entry in self.plan.vocabularies.items():
            if entry.train is not None:  # silent where it exists: nothing is new then
                log = print if name in missing else (lambda line: None)
                making.make_vocabulary(self.plan.dataset, entry.train.settings, name=entry.train.name, log=log)
        stage_runs = [run for run in self.runs() if fnmatchcase(run.name, cells or "*")]
        for run in stage_runs:  # before the runs, one after another: runs side by side would be in each other's way
            needs = run.experiment.needs
            for dataset in (run.experiment.train_dataset, run.experiment.eval_dataset):
                if not (recipe := Recipe.of(dataset, needs)).ready:
                    recipe.make()
        yield stage_runs
        unigrams.compare([run for run in stage_runs if not outcome(run).diverged])

    def results(self, runs: Sequence[StudyRun]) -> Board:
        return results(self.plan, runs)

    def with_published(self, board: Board) -> Board:
        board_file = self.home / self.page.board_file
        return with_published(board, json_object_of(board_file), self.runs()) if board_file.exists() else board

    def summary(self, board: Board) -> Iterator[str]:
        yield from map(line, board["cells"])
        yield f"{board['learned']} of {board['runs']} cells have learned"

    def check(self, *, as_json: bool = False) -> int:
        """Print the needs of each cell and whether they are met; returns 0 if all can be trained, 1 otherwise.

        A missing vocabulary is no problem, as it is trained first; the cells that need it are checked as far as they do
        not depend on it. Raises UserError where the plan cannot be read.
        """
        plan = self.plan
        counts = ", ".join(f"{len(getattr(plan, axis))} {axis}" for axis in AXES.values())
        left = f"{len(plan.left_out_pairs())} pairs left out, each with its reason"
        cells = f"{paths.shown(self.plan_path)}: {counts}, {len(plan.cells())} cells; {left}"
        findings, problems = [Finding("matrix", cells)], list[tuple[str, str]]()
        missing = self._missing_vocabularies()
        for name, train in missing.items():
            findings.append(Finding("vocabs", f"{train.name} is trained first: {plan.vocabulary_command(name)}"))
        for labels in plan.cells():
            bindings = []
            if labels["vocabulary"] in missing:  # the most ids that a task may have
                settings = missing[labels["vocabulary"]].settings
                bindings.append(f"VOCAB_SIZE={settings.size + settings.extra_ids + len(NAMED_TOKENS)}")
            run = self._run(labels, bindings)
            for finding in self._findings_of_run(run, has_data=not bindings):
                if finding.problem:
                    problems.append((finding.text, run.name))
                else:
                    findings.append(finding)
        findings += [Finding("cells", line, problem=True) for line in _with_cells(problems)]
        return report(findings, as_json=as_json)

    def _findings_of_run(self, run: StudyRun, *, has_data: bool) -> list[Finding]:
        """The problems of a cell, or a line with its facts."""
        loaded, mistakes = run.examined
        if loaded is None or mistakes:
            return [Finding("cells", mistake, problem=True) for mistake in mistakes]
        found = list(checks.findings(loaded, run.directory, data=has_data, quick=True))
        if problems := [finding for finding in found if finding.problem]:
            return problems
        experiment = loaded.experiment
        facts = f"{experiment.model.num_params:,} parameters, {experiment.train_dataset.shapes}, {run.steps:,} steps"
        state = next(finding.text for finding in found if finding.what == "run").partition(", in ")[0]
        return [Finding("cell", f"{run.name}: {facts}, {run.labels['task']}, {state}")]


def _with_cells(mistakes: Iterable[tuple[str, str]]) -> list[str]:
    """Each mistake of (mistake, cell) once, with its cells; of many, the first ones and the number of the others."""
    cells_of: dict[str, list[str]] = {}
    for mistake, cell in mistakes:
        cells_of.setdefault(mistake, []).append(cell)
    more = {mistake: f" and {len(cells) - _SHOWN} more" for mistake, cells in cells_of.items() if len(cells) > _SHOWN}
    return [f"{text} (in {' '.join(cells[:_SHOWN])}{more.get(text, '')})" for text, cells in cells_of.items()]
