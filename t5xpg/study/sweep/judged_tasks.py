"""The tasks of [judged] in sweep.toml, on which the runs of a sweep are measured besides their own validation.

Recipes that are trained on different tasks cannot be compared otherwise: the loss on a run's own task says how hard
that task is, and a step on one task reads more text than a step on another, though batches have the same shape.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.data.stream.client import DataService
from t5xpg.evaluate import evaluation
from t5xpg.evaluate.trained_model import vocabulary_differences
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.recipe import Recipe
from t5xpg.run.evaluations import find
from t5xpg.study.run_batches import count_text, text_bytes
from t5xpg.study.runs import StudyRun, outcome


def require_tasks(runs: Sequence[StudyRun], tasks: Sequence[str]) -> None:
    """Raise UserError, before training and not hours later, if a run could not be measured on a task.

    Missing exports and caches are made. Runs that were measured on every task are not checked again.
    """
    trained: dict[str, Experiment] = {}
    for run in runs:
        if any(evaluation_on(run, task) is None for task in tasks):
            trained.setdefault(run.experiment.train_dataset.mixture_or_task_name, run.experiment)
    if not trained:
        return
    judged = [(name, evaluation.with_task(one.eval_dataset, task)) for name, one in trained.items() for task in tasks]
    for name, dataset in (*((name, one.train_dataset) for name, one in trained.items()), *judged):
        needs = trained[name].needs
        recipe = Recipe.of(dataset, needs)
        if not recipe.ready or recipe.task is None:
            recipe.make()
    with DataService() as service:
        for name, dataset in judged:
            expected = service.describe(trained[name].train_dataset).vocabulary.to_json()
            if differences := vocabulary_differences(service.describe(dataset).vocabulary, expected, "run"):
                raise UserError(
                    f"[judged] tasks: {dataset.mixture_or_task_name} has another vocabulary than {name}, which a "
                    f"recipe is trained on: {differences}. Choose tasks of one vocabulary."
                )


def measure(runs: Iterable[StudyRun], tasks: Sequence[str]) -> None:
    """Measure finished runs on the tasks on which they were not measured yet, and count the text that they read."""
    for run in runs if tasks else ():
        if outcome(run).last is None:
            continue
        for task in tasks:
            if evaluation_on(run, task) is None:
                evaluation.evaluate(run.loaded, run.path, task=task)
        if text_bytes(run) is None:
            count_text(run)


def evaluation_on(run: StudyRun, task: str) -> Mapping[str, Any] | None:
    """The evaluation of a run's last step on a task, as `evaluation.evaluate` writes it; None if there is none."""
    found = find(run.directory, task=task, step=outcome(run).step, mean_of_checkpoints=None)
    return None if found is None else found.record
