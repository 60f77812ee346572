"""The task that a stream reads: its text, its cache, its spans and its vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from t5xpg.base import paths
from t5xpg.base.errors import UserError, nearest
from t5xpg.check.finding import Finding
from t5xpg.data import objectives
from t5xpg.data.cache import command
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.data.tasks import lengths as objective_lengths
from t5xpg.data.tasks import task_names
from t5xpg.data.text import labelled
from t5xpg.data.text.manifest import SPLITS, find_manifests, read_manifest
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.measurements import no_metrics
from t5xpg.experiment import Experiment, assembly, prepare


def look_at(dataset: DatasetConfig, experiment: Experiment, *, quick: bool) -> Iterator[Finding]:
    """What there is to say of a stream. quick: without starting TensorFlow, so nothing of users' tasks."""
    task = dataset.mixture_or_task_name
    name = prepare.dataset_of(task)
    entries = task_names.vocabularies(paths.data_directory())
    of_tfds = {row.name: row for row in task_names.tfds_rows(entries)}
    if name is not None:
        yield from _own_task(name, dataset, experiment)
    elif task in of_tfds:
        yield from _tfds_task(of_tfds[task], dataset, experiment)
    elif not dataset.module_import:
        fields = prepare.dataset_fields()
        known = [row.name for each in fields for row in task_names.rows(each, entries, fields[each])] + [*of_tfds]
        get = task_names.how_to_get(task, entries)
        text = f"There is no task or mixture named {task}.{nearest(task, known)}{get}"
        yield Finding("data", f"{text} Tasks of your own need MODULE_IMPORT.", problem=True)
    elif not quick:
        yield from _users_task(dataset, experiment)


def _tfds_task(row: task_names.Row, dataset: DatasetConfig, experiment: Experiment) -> Iterator[Finding]:
    """A task over TensorFlow Datasets, as far as is known without them."""
    assert row.supervised is not None
    task, read = dataset.mixture_or_task_name, labelled.TFDS_TASKS[row.supervised.kind]
    is_cached = (paths.cache_directory() / row.cached_as / command.COMPLETED).is_file()
    if dataset.split not in read.splits:
        text = f"{task} has no split {dataset.split!r}.{nearest(dataset.split, read.splits)}"
        yield Finding("data", text, problem=True)
    elif dataset.use_cached and not is_cached:
        first = f"`make train` caches it first, and gets {read.dataset} of TensorFlow Datasets where that is not here"
        yield Finding("data", f"{task}, {dataset.split}: {first}")
    else:
        yield Finding("data", f"{task}, {dataset.split}, {'cached' if dataset.use_cached else 'not cached'}")
    yield from _row(row, dataset, experiment)


def _own_task(name: str, dataset: DatasetConfig, experiment: Experiment) -> Iterator[Finding]:
    task = dataset.mixture_or_task_name
    counts: dict[str, int | None] = dict.fromkeys(SPLITS)
    problems = list(prepare.problems(dataset))
    if name in find_manifests(paths.data_directory()) and not problems:
        manifest = read_manifest(paths.data_directory() / name)
        counts = {split: record.documents for split, record in manifest.splits.items()}
    if dataset.split not in counts:
        problems.append(f"{task} has no split {dataset.split!r}.{nearest(dataset.split, counts)}")
    elif counts[dataset.split] == 0:
        problems.append(f"The split {dataset.split!r} of {name} is empty: nothing can be read from it.")
    missing = prepare.missing(dataset)
    count = counts.get(dataset.split)
    if problems:
        for problem in dict.fromkeys(problems):
            yield Finding("data", problem, problem=True)
    elif missing:
        yield Finding(
            "data", f"{task}, {dataset.split}: `make train` makes first what is missing: {', '.join(missing)}"
        )
    else:
        cached = "cached" if dataset.use_cached else "not cached"
        yield Finding("data", f"{task}, {dataset.split}, {cached}" + (f", {count:,} documents" if count else ""))
    row = task_names.row_of(task, name, task_names.vocabularies(paths.data_directory()))
    yield from _row(row, dataset, experiment)


def _row(row: task_names.Row, dataset: DatasetConfig, experiment: Experiment) -> Iterator[Finding]:
    """What the table says of a task: metrics, vocabulary, lengths."""
    yield from _metrics(dataset, experiment, has_metrics=row.has_metrics)
    yield from _vocabulary(row.vocabulary, experiment)
    if row.supervised is not None and dataset.objective is not None:
        yield Finding(
            "spans",
            f"The experiment sets the objective {objectives.name_of(dataset.objective)}, and {row.name} has inputs and "
            "targets already: include 'gin/objectives/none.gin' behind gin/runs/pretrain.gin.",
            problem=True,
        )
    for part in row.parts:
        yield from _lengths(part, row.vocabulary, dataset, "" if len(row.parts) == 1 else f"{part.name}: ")


def _lengths(part: task_names.Part, vocabulary: Vocabulary, dataset: DatasetConfig, before: str) -> Iterator[Finding]:
    """Whether the examples of a task fit the lengths of its features. before: what its line begins with."""
    objective, lengths = dataset.objective or part.objective, dataset.task_feature_lengths
    if objectives.name_of(objective) != objectives.name_of(part.objective):
        yield Finding(
            "spans",
            f"The experiment sets the objective {objectives.name_of(objective)}, and {part.name} has "
            f"{objectives.name_of(part.objective)}: include 'gin/objectives/{_fragment(part)}.gin' behind "
            "gin/runs/pretrain.gin, or choose another task.",
            problem=True,
        )
        return
    problems = objective_lengths.problems(part.name, lengths, objective, vocabulary.num_sentinels, part.reserved)
    for problem in problems:
        yield Finding("spans", problem, problem=True)
    if problems:
        return
    needed = objective_lengths.objective_lengths(objective, lengths, part.reserved)
    spans = f"{needed.sentinels} span{'s' if needed.sentinels > 1 else ''} and " if needed.sentinels else ""
    at_most = "" if isinstance(objective, objectives.SpanCorruption) else "at most "
    yield Finding(
        "spans",
        f"{before}{needed.text} tokens of text give {at_most}{spans}{needed.targets} target tokens of "
        f"{lengths['targets']}",
    )


def _fragment(part: task_names.Part) -> str:
    return task_names.UL2_MIXTURE if part.mode is not None else objectives.name_of(part.objective)


def _users_task(dataset: DatasetConfig, experiment: Experiment) -> Iterator[Finding]:
    """What the data process says of a task or mixture that a user's module registers."""
    with DataService() as service:
        try:
            try:
                described = service.describe(dataset)
            except UserError as error:
                if task_names.NOT_CACHED not in str(error):
                    raise
                described = service.describe(dataclasses.replace(dataset, use_cached=False))
            assembly.check_vocabulary(described.vocabulary, experiment)
        except UserError as error:
            yield Finding("data", str(error), problem=True)
            return
    cached = "cached" if described.cached else "not cached"
    if dataset.use_cached and not described.cached:
        cached = "no cache yet (`make train` makes it first, where the task can be cached)"
    count = described.examples.get(dataset.split)
    yield Finding("data", f"{described.name}, {dataset.split}, {cached}" + (f", {count:,} documents" if count else ""))
    yield from _metrics(dataset, experiment, has_metrics=described.has_metrics)


def _metrics(dataset: DatasetConfig, experiment: Experiment, *, has_metrics: bool) -> Iterator[Finding]:
    """Whether there are the metrics that are to be computed while training."""
    if dataset is experiment.eval_dataset and experiment.infer_eval_period is not None and not has_metrics:
        yield Finding("metrics", no_metrics(dataset.mixture_or_task_name), problem=True)


def _vocabulary(vocabulary: Vocabulary, experiment: Experiment) -> Iterator[Finding]:
    try:
        assembly.check_vocabulary(vocabulary, experiment)
    except UserError as error:
        yield Finding("ids", str(error), problem=True)
    else:
        size = experiment.model.config.vocab_size
        yield Finding("ids", f"{vocabulary.size:,} of the vocabulary, {size:,} of the model")
