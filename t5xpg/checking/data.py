"""The task that a stream reads: its text, its cache, its spans and its vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from t5xpg import assembly, paths, preparation
from t5xpg.checking.finding import Finding
from t5xpg.data import span_lengths, task_names
from t5xpg.data.client import DataService
from t5xpg.data.datasets_table import built_in
from t5xpg.data.manifest import SPLITS, find_manifests, read_manifest
from t5xpg.data.spec import DatasetConfig
from t5xpg.errors import UserError, nearest
from t5xpg.experiment import Experiment
from t5xpg.vocabularies import Vocabulary


def look_at(dataset: DatasetConfig, experiment: Experiment, *, quick: bool) -> Iterator[Finding]:
    """What there is to say of a stream. quick: without starting TensorFlow, so nothing of users' tasks."""
    task = dataset.mixture_or_task_name
    name = preparation.dataset_of(task)
    if name is not None:
        yield from _own_task(name, dataset, experiment)
    elif not dataset.module_import:
        exports = [*built_in(), *find_manifests(paths.data_directory())]
        known = [task_names.task_name(each, one) for each in exports for one in task_names.OBJECTIVES]
        possible = task_names.possible_dataset(task)
        get = f" To export its text, type: make data DATASET={possible}" if possible else ""
        text = f"There is no task or mixture named {task}.{nearest(task, known)}{get}"
        yield Finding("data", f"{text} Tasks of your own need MODULE_IMPORT.", problem=True)
    elif not quick:
        yield _users_task(dataset, experiment)


def _own_task(name: str, dataset: DatasetConfig, experiment: Experiment) -> Iterator[Finding]:
    task = dataset.mixture_or_task_name
    counts: dict[str, int | None] = dict.fromkeys(SPLITS)
    problems = list(preparation.problems(dataset))
    if name in find_manifests(paths.data_directory()) and not problems:
        manifest = read_manifest(paths.data_directory() / name)
        counts = {split: record.documents for split, record in manifest.splits.items()}
    if dataset.split not in counts:
        problems.append(f"{task} has no split {dataset.split!r}.{nearest(dataset.split, counts)}")
    elif counts[dataset.split] == 0:
        problems.append(f"The split {dataset.split!r} of {name} is empty: nothing can be read from it.")
    missing = preparation.missing(dataset)
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

    entry = task_names.entry_of(task, name)
    yield from _vocabulary(entry.vocabulary, experiment)
    objective = dataset.objective or entry.span_corruption
    problems = span_lengths.problems(task, dataset.task_feature_lengths, objective, entry.vocabulary.num_sentinels)
    for problem in problems:
        yield Finding("spans", problem, problem=True)
    if not problems:
        lengths = span_lengths.span_lengths(dataset.task_feature_lengths["inputs"], objective)
        yield Finding(
            "spans",
            f"{lengths.text} tokens of text give {lengths.spans} span{'s' if lengths.spans > 1 else ''} and "
            f"{lengths.targets} target tokens of {dataset.task_feature_lengths['targets']}",
        )


def _users_task(dataset: DatasetConfig, experiment: Experiment) -> Finding:
    """What the data process says of a task or mixture that a user's module registers."""
    with DataService(data_dir=paths.data_directory(), cache_dir=paths.cache_directory()) as service:
        try:
            try:
                described = service.describe(dataset)
            except UserError as error:
                if task_names.NOT_CACHED not in str(error):
                    raise
                described = service.describe(dataclasses.replace(dataset, use_cached=False))
            assembly.check_vocabulary(described.vocabulary, experiment)
        except UserError as error:
            return Finding("data", str(error), problem=True)
    cached = "cached" if described.cached else "not cached"
    if dataset.use_cached and not described.cached:
        cached = "no cache yet (`make train` makes it first, where the task can be cached)"
    count = described.examples.get(dataset.split)
    return Finding("data", f"{described.name}, {dataset.split}, {cached}" + (f", {count:,} documents" if count else ""))


def _vocabulary(vocabulary: Vocabulary, experiment: Experiment) -> Iterator[Finding]:
    try:
        assembly.check_vocabulary(vocabulary, experiment)
    except UserError as error:
        yield Finding("ids", str(error), problem=True)
    else:
        size = experiment.model.config.vocab_size
        yield Finding("ids", f"{vocabulary.size:,} of the vocabulary, {size:,} of the model")
