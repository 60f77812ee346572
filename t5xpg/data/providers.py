"""SeqIO tasks and mixtures by name, with the experiment's objective, and what can be known of them before reading."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import seqio
import t5.data
import tensorflow as tf

from t5xpg.data import span_lengths
from t5xpg.data.seqio_vocabularies import from_seqio
from t5xpg.data.spec import DatasetConfig, SpanCorruption
from t5xpg.data.task_names import NOT_CACHED, cache_command, possible_dataset
from t5xpg.errors import UserError, nearest

Provider: TypeAlias = seqio.Task | seqio.Mixture


def import_modules(names: Sequence[str]) -> None:
    """Import the user's modules, which register tasks. Raises UserError where one cannot be found."""
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise
            raise UserError(
                f"MODULE_IMPORT names {name}, which Python does not find. Start from the folder that holds it, or put "
                "that folder into PYTHONPATH."
            ) from error


def is_known(name: str) -> bool:
    """Whether a task or mixture of this name is registered."""
    return name in seqio.TaskRegistry.names() or name in seqio.MixtureRegistry.names()


def find_provider(config: DatasetConfig) -> Provider:
    """The task or mixture of `config`, with its objective where it sets one.

    Raises UserError, naming the nearest names, where there is none.
    """
    name = config.mixture_or_task_name
    if not is_known(name):
        names = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
        raise UserError(f"There is no task or mixture named {name}.{nearest(name, names)}{_how_to_get(name)}")
    provider = seqio.get_mixture_or_task(name)
    objective = config.objective
    return provider if objective is None else map_tasks(provider, lambda task: _with_objective(task, objective))


def map_tasks(provider: Provider, function: Callable[[seqio.Task], seqio.Task]) -> Provider:
    """`function` of the task; of a mixture, the mixture of `function` of its tasks at the same rates."""
    if isinstance(provider, seqio.Task):
        return function(provider)
    rates = [(function(task), functools.partial(_rate, provider, task)) for task in provider.tasks]
    return seqio.Mixture(provider.name, rates, sample_fn=provider._sample_fn)


def _rate(mixture: seqio.Mixture, task: seqio.Task, _: seqio.Task) -> float:
    return mixture.get_rate(task)


def tasks_of(provider: Provider) -> list[seqio.Task]:
    """The task itself, or the tasks of a mixture in the order of their names."""
    return [provider] if isinstance(provider, seqio.Task) else list(provider.tasks)


def reads_cache(task: seqio.Task, config: DatasetConfig) -> bool:
    """Whether a task of the stream is read from its SeqIO cache (tasks without a placeholder never are)."""
    return config.use_cached and task.supports_caching


def source_of(task: seqio.Task, config: DatasetConfig) -> seqio.DataSource:
    """What a task of the stream is read from: its cache, or its source."""
    return task._get_cached_source(config.split) if reads_cache(task, config) else task.source


def check(provider: Provider, config: DatasetConfig) -> None:
    """Raise UserError for what would fail, or go wrong unseen, once the stream is read."""
    lengths = dict(config.task_feature_lengths)
    if set(lengths) != {"inputs", "targets"}:
        raise UserError(f"TASK_FEATURE_LENGTHS has {sorted(lengths)}: it must give lengths of 'inputs' and 'targets'.")
    missing = {"inputs", "targets"} - set(provider.output_features)
    if missing:
        raise UserError(f"{provider.name} has no feature {' and '.join(sorted(missing))}: it cannot train a T5.")
    if config.split not in provider.splits:
        raise UserError(f"{provider.name} has no split {config.split!r}.{nearest(config.split, provider.splits)}")
    for task in tasks_of(provider):
        if config.split in task.splits:
            _check_readable(task, config)
            _check_objective(task, config)


def objective_of(task: seqio.Task) -> SpanCorruption | None:
    """The span corruption of a task's preprocessors; None where it has none."""
    for step in task.preprocessors:
        function, arguments = _unwrap(step)
        if _is_span_corruption(function):
            default = SpanCorruption()
            return SpanCorruption(
                noise_density=arguments.get("noise_density", default.noise_density),
                mean_noise_span_length=arguments.get("mean_noise_span_length", default.mean_noise_span_length),
            )
    return None


def _check_readable(task: seqio.Task, config: DatasetConfig) -> None:
    modules = config.module_import
    if reads_cache(task, config):
        if not task.cache_dir:
            raise UserError(
                f"{task.name} {NOT_CACHED}. Type: {cache_command(task.name, modules)}  (or read it without a cache: "
                "USE_CACHED_TASKS = False)"
            )
        cached = sorted(task.source.splits)
        try:
            readable = bool(task._get_cached_source(config.split).list_shards(config.split))
        except Exception as error:  # seqio opens the info and stats files of the split: gone or torn
            raise UserError(
                f"The cache of {task.name} cannot be read for the split {config.split!r} (splits of the task: "
                f"{', '.join(cached)}): {error}. Type: {cache_command(task.name, modules, force=True)}"
            ) from error
        if not readable:
            raise UserError(
                f"The cache of {task.name} has no files for the split {config.split!r}. "
                f"Type: {cache_command(task.name, modules, force=True)}"
            )
    elif task.requires_caching:
        raise UserError(f"{task.name} can only be read from a cache: set USE_CACHED_TASKS = True.")
    elif isinstance(task.source, seqio.FileDataSource) and not _has_files(task.source, config.split):
        raise UserError(f"The files of {task.name}, split {config.split!r}, are not there.{_how_to_get(task.name)}")


def _has_files(source: seqio.FileDataSource, split: str) -> bool:
    # a name without wildcards is listed whether there is such a file or not
    return any(tf.io.gfile.exists(str(path)) for path in source.list_shards(split))


def _check_objective(task: seqio.Task, config: DatasetConfig) -> None:
    objective = objective_of(task)
    if objective is None:
        return
    sentinels = from_seqio(task.output_features["targets"].vocabulary).num_sentinels
    if problems := span_lengths.problems(task.name, config.task_feature_lengths, objective, sentinels):
        raise UserError(" ".join(problems))


def _with_objective(task: seqio.Task, objective: SpanCorruption) -> seqio.Task:
    """The task with other arguments to its span corruption. Its cache stays valid: the step comes after it."""
    if objective_of(task) is None:
        raise UserError(
            f"The experiment sets a span corruption objective, and {task.name} has no step "
            "t5.data.preprocessors.span_corruption: leave the objective out, or choose another task."
        )
    steps: list[Any] = []
    for step in task.preprocessors:
        function, arguments = _unwrap(step)
        if _is_span_corruption(function):
            arguments |= {
                "noise_density": objective.noise_density,
                "mean_noise_span_length": objective.mean_noise_span_length,
            }
            step = functools.partial(function, **arguments)
        steps.append(step)
    return task.replace(preprocessors=steps)


def _unwrap(step: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function below `functools.partial`s, and the keyword arguments that they bind."""
    arguments: dict[str, Any] = {}
    while isinstance(step, functools.partial):
        arguments = {**step.keywords, **arguments}
        step = step.func
    return step, arguments


def _is_span_corruption(function: Any) -> bool:
    return function is t5.data.preprocessors.span_corruption


def _how_to_get(name: str) -> str:
    """The command that exports the dataset of one of our own tasks."""
    dataset = possible_dataset(name)
    return f" To export its text, type: make data DATASET={dataset}" if dataset else ""
