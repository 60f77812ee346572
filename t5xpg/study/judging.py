"""What the final runs of a sweep are measured on besides their own validation: the tasks of [judged] in sweep.toml.

Recipes that are trained on different tasks compare in nothing else: the loss on a run's own task says how hard that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate import evaluation
from t5xpg.evaluate.trained_model import vocabulary_differences
from t5xpg.experiment import Experiment, config, data_state, prepare
from t5xpg.run.directory import RunDirectory
from t5xpg.study import text_read
from t5xpg.study.plan import Run
from t5xpg.study.runs import outcome


def require_tasks(experiment: str, runs: Sequence[Run], tasks: Sequence[str], folder: Path) -> None:
    """Raise UserError where a run could not be measured on a task: before it is trained, and not hours later.

    Exports and caches are made where they are missing. Runs that were measured on every task are not looked at again.
    """
    waiting = [run for run in runs if any(of(run, task, folder) is None for task in tasks)]
    own: dict[str, Experiment] = {}
    for run in waiting:
        loaded = _experiment(experiment, run)
        own.setdefault(loaded.train_dataset.mixture_or_task_name, loaded)
    judged = {
        (name, task): evaluation.of_task(loaded.eval_dataset, task) for name, loaded in own.items() for task in tasks
    }
    if not own:
        return
    for dataset in (*(loaded.train_dataset for loaded in own.values()), *judged.values()):
        state = data_state.state_of(dataset)
        if state.missing or state.row is None:
            prepare.prepare(dataset)
    with DataService() as service:
        ids = {name: service.describe(loaded.train_dataset).vocabulary for name, loaded in own.items()}
        for (name, _), dataset in judged.items():
            _require_ids(service, dataset, name, ids[name])


def _require_ids(service: DataService, dataset: DatasetConfig, trained_on: str, trained: Vocabulary) -> None:
    task = dataset.mixture_or_task_name
    differences = vocabulary_differences(service.describe(dataset).vocabulary, trained.to_json(), "run")
    if differences:
        raise UserError(
            f"[judged] tasks: {task} has another vocabulary than {trained_on}, which a recipe is trained on: "
            f"{differences}. Choose tasks of one vocabulary."
        )


def measure(experiment: str, runs: Iterable[Run], tasks: Sequence[str], folder: Path) -> None:
    """Measure the runs that are done on the tasks that they were not measured on, and count what they read."""
    for run in runs:
        found = outcome(run, folder)
        if found.diverged or not found.done(run):
            continue
        for task in tasks:
            if of(run, task, folder) is None:
                evaluation.evaluate(_loaded(experiment, run), folder / run.folder, task=task)
        if text_read.of(run, folder) is None:
            text_read.count(_experiment(experiment, run), run, folder)


def of(run: Run, task: str, folder: Path) -> Mapping[str, Any] | None:
    """What was measured of a run's last step on a task, as `evaluation.evaluate` writes it; None where nothing was."""
    directory = RunDirectory(folder / run.folder)
    at = outcome(run, folder).step
    own = directory.evaluation_json  # where the task is that of the run's validation
    for file in (directory.evaluation / task / own.name, own):
        found: Mapping[str, Any] = read_json(file) if file.exists() else {}
        if found.get("task") == task and found.get("step") == at:
            return found
    return None


def _loaded(experiment: str, run: Run) -> config.LoadedConfig:
    return config.load(experiment, *config.split_overrides(" ".join(run.overrides)))


def _experiment(experiment: str, run: Run) -> Experiment:
    return _loaded(experiment, run).experiment
