"""The checks of the task that a stream reads: its text, cache, spans and vocabulary."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_if_any
from t5xpg.check.finding import Finding, errors_as_problems
from t5xpg.data import objectives
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService, TaskDescription
from t5xpg.data.tasks import task_names
from t5xpg.data.text.labelled import TFDS_TASKS
from t5xpg.data.text.manifest import SPLITS, find_manifests, read_manifest
from t5xpg.data.vocab.record import REPORT, come_back
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.measurements import no_metrics
from t5xpg.experiment import assembly
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.known_tasks import objective_fragment, unknown_task
from t5xpg.experiment.needs import PlannedIds
from t5xpg.experiment.recipe import Recipe

Service: TypeAlias = Callable[[], DataService]  # starts TensorFlow at the first call


def data_findings(dataset: DatasetConfig, experiment: Experiment, service: Service | None) -> Iterator[Finding]:
    """The findings about a stream. service: None to leave out those with TensorFlow, such as all of users' tasks."""
    recipe = Recipe.of(dataset, experiment.needs)
    if service is not None:
        recipe = recipe.compared()
    if recipe.task is not None:
        yield from _task_of_table(recipe, recipe.task, dataset, experiment, service)
    elif not dataset.module_import:
        yield Finding("data", unknown_task(dataset.mixture_or_task_name), problem=True)
    elif not recipe.ready:
        yield from _text(recipe, dataset)
    elif service is not None:
        yield from errors_as_problems("data", _users_task(recipe, experiment, service()))


def _text(recipe: Recipe, dataset: DatasetConfig) -> Iterator[Finding]:
    """The findings on missing and unusable text, vocabulary and cache."""
    for problem in recipe.problems:
        yield Finding("data", problem, problem=True)
    if recipe.missing and not recipe.problems:
        commands = ", ".join(recipe.missing)
        if recipe.task is not None and recipe.task.supervised is not None and recipe.task.dataset is None:
            source = TFDS_TASKS[recipe.task.supervised.kind].dataset
            commands += f", of {source} of TensorFlow Datasets, fetched if it is not here"
        stream = f"{dataset.mixture_or_task_name}, {dataset.split}"
        yield Finding("data", f"{stream}: `make train` makes first what is missing: {commands}")


def _task_of_table(
    recipe: Recipe, row: task_names.KnownTask, dataset: DatasetConfig, experiment: Experiment, service: Service | None
) -> Iterator[Finding]:
    documents = _documents(recipe, row)
    count = documents.get(dataset.split)
    yield from errors_as_problems("data", _table_text(recipe, row, dataset, documents))
    yield from _metrics(dataset, experiment, has_metrics=row.has_metrics or bool(dataset.metrics))
    yield from errors_as_problems("ids", _vocabulary(row.vocabulary, experiment))
    if row.supervised is not None and dataset.objective is not None:
        yield _other_objective(row.name, "inputs and targets already", "none", dataset.objective)
    uncached = [command for command in recipe.missing if not command.startswith("make cache")]
    if row.supervised is not None and (count or recipe.ready) and service and not recipe.problems and not uncached:
        readable = dataclasses.replace(dataset, objective=None, use_cached=dataset.use_cached and recipe.ready)
        yield from errors_as_problems("data", _fits(service(), readable, experiment))
    for part in row.parts:
        yield from _lengths(part, row.vocabulary, dataset, "" if len(row.parts) == 1 else f"{part.name}: ")


def _table_text(
    recipe: Recipe, row: task_names.KnownTask, dataset: DatasetConfig, documents: Mapping[str, int | None]
) -> Iterator[Finding]:
    """The finding on the text of a split; raises UserError where the task has not what the stream takes."""
    dataset.check_task(row.name, row.features, documents)
    count = documents[dataset.split]
    if count == 0:
        raise UserError(f"The split {dataset.split!r} of {row.dataset} is empty: nothing can be read from it.")
    if not recipe.ready:
        yield from _text(recipe, dataset)
    else:
        yield _readable(row.name, dataset, "cached" if dataset.use_cached else "not cached", count)


def _documents(recipe: Recipe, row: task_names.KnownTask) -> Mapping[str, int | None]:
    """The splits of a task, with the number of their documents, or None if it is not known."""
    if row.dataset is None and row.supervised is not None:
        return dict.fromkeys(TFDS_TASKS[row.supervised.kind].splits)
    folder = find_manifests(paths.data_directory()).get(str(row.dataset))
    if folder is None or recipe.problems:
        return dict.fromkeys(SPLITS)
    return {split: record.documents for split, record in read_manifest(folder).splits.items()}


def _readable(task: str, dataset: DatasetConfig, cached: str, documents: int | None) -> Finding:
    count = f", {documents:,} documents" if documents else ""
    return Finding("data", f"{task}, {dataset.split}, {cached}{count}")


def _lengths(part: task_names.Part, vocabulary: Vocabulary, dataset: DatasetConfig, prefix: str) -> Iterator[Finding]:
    """The findings on the lengths of a task's features. prefix: the beginning of the text."""
    objective, lengths = dataset.objective or part.objective, dataset.task_feature_lengths
    if (own := part.objective.name) != objective.name:
        yield _other_objective(part.name, own, objective_fragment(part), objective)
        return
    problems = objective.problems(part.name, lengths, vocabulary, part.reserved)
    for problem in problems:
        yield Finding("spans", problem, problem=True)
    if problems:
        return
    needed = objective.lengths(lengths, vocabulary, part.reserved)
    spans = f"{needed.sentinels} span{'s' if needed.sentinels > 1 else ''} and " if needed.sentinels else ""
    if isinstance(objective, objectives.SpanCorruption) and objective.whole_words:
        text = f"at most {spans[:-5]} of whole words in {prefix}{needed.text} tokens of text; examples with more than"
        yield Finding("spans", f"{text} {lengths['targets']} target tokens are left out")
        return
    at_most = "" if isinstance(objective, objectives.SpanCorruption) else "at most "
    text = f"{prefix}{needed.text} tokens of text give {at_most}{spans}{needed.targets} target tokens of"
    yield Finding("spans", f"{text} {lengths['targets']}")


def _other_objective(task: str, has: str, fragment: str, objective: objectives.Objective) -> Finding:
    """The finding that a task has not the objective that the experiment sets. fragment: "" for the default."""
    include = f"include 'gin/objectives/{fragment}.gin' after gin/runs/pretrain.gin"
    text = (
        f"The experiment sets the objective {objective.name}, and {task} has {has}: "
        f"{include if fragment else 'leave out the fragment of gin/objectives'}, or choose another task."
    )
    return Finding("spans", text, problem=True)


def _users_task(recipe: Recipe, experiment: Experiment, service: DataService) -> Iterator[Finding]:
    """The findings of the data process on a task or mixture that a user's module registers."""
    dataset = recipe.config
    description, readable = describe(service, dataset)
    assembly.check_vocabulary(description.vocabulary, experiment)
    if description.cached:
        recipe.compare_caches()
    yield from _fits(service, readable, experiment)
    cached = "cached" if description.cached else "not cached"
    if dataset.use_cached and not description.cached:
        cached = "no cache yet (`make train` makes it first, where the task can be cached)"
    yield _readable(description.name, dataset, cached, description.examples.get(dataset.split))
    yield from _metrics(dataset, experiment, has_metrics=description.has_metrics)


def _fits(service: DataService, dataset: DatasetConfig, experiment: Experiment) -> Iterator[Finding]:
    """The findings on the first examples: how many are cut, and the share that is unknown to the vocabulary."""
    for fit in service.fits(dataset):
        yield Finding("examples", fit.summary(dataset))
        for problem in fit.problems(dataset, experiment.max_cut_share):
            yield Finding("examples", problem, problem=True)


def describe(service: DataService, dataset: DatasetConfig) -> tuple[TaskDescription, DatasetConfig]:
    """The description of the task and the stream that it is of, which has no cache if there is none yet."""
    try:
        return service.describe(dataset), dataset
    except UserError as error:
        if task_names.NOT_CACHED not in str(error):
            raise
    # in one epoch: its place need not be saved before it is cached
    readable = dataclasses.replace(dataset, use_cached=False, num_epochs=1)
    return service.describe(readable), readable


def _metrics(dataset: DatasetConfig, experiment: Experiment, *, has_metrics: bool) -> Iterator[Finding]:
    """The finding that the task has no metrics, if they are to be computed while training."""
    if experiment.infer_eval_period is not None and dataset == experiment.of_metrics.eval_dataset and not has_metrics:
        yield Finding("metrics", no_metrics(dataset.mixture_or_task_name), problem=True)


def _vocabulary(vocabulary: Vocabulary, experiment: Experiment) -> Iterator[Finding]:
    if isinstance(vocabulary, PlannedIds) and not vocabulary.pieces:
        return  # its size is not known
    assembly.check_vocabulary(vocabulary, experiment)
    size = experiment.model.config.vocab_size
    at_most = "at most " if isinstance(vocabulary, PlannedIds) else ""
    yield Finding("ids", f"{at_most}{vocabulary.size:,} of the vocabulary, {size:,} of the model")
    made = not at_most and vocabulary.model_file is not None
    report = json_object_if_any(Path(str(vocabulary.model_file)).with_name(REPORT)) if made else {}
    if "kept" in report and report["kept"] < report["documents"]:
        yield Finding("ids", f"of {report['split']} come back from ids {come_back(report)}")
