"""SeqIO tasks and mixtures by name, with the experiment's objective, and what can be known of them before reading."""

import importlib
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import seqio
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.data.batch import layout_of
from t5xpg.data.metrics import metric_of
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.tasks import sources
from t5xpg.data.tasks.steps import objective_of, reserved_of, with_objective
from t5xpg.data.tasks.table import ROWS
from t5xpg.data.tasks.task_names import NOT_CACHED, cache_command, unknown_task
from t5xpg.data.vocab.seqio_vocabularies import from_seqio

Provider: TypeAlias = seqio.Task | seqio.Mixture
_NOT_REGISTERED = re.compile(r"Provider name not registered: (\S+)")  # SeqIO's words


def import_modules(names: Sequence[str]) -> None:
    """Import the user's modules, which register tasks. UserError where one is absent, or a task that it mixes."""
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
        except ValueError as error:
            if (found := _NOT_REGISTERED.search(str(error))) is None:
                raise
            raise UserError(f"{name}: {_unknown(found[1])}") from error


def is_known(name: str) -> bool:
    """Whether a task or mixture of this name is registered."""
    return name in seqio.TaskRegistry.names() or name in seqio.MixtureRegistry.names()


def find_provider(config: DatasetConfig) -> Provider:
    """The task or mixture of `config`, with its objective and metrics. UserError, naming the nearest names, where there
    is none."""
    name = config.mixture_or_task_name
    if not is_known(name):
        raise UserError(_unknown(name))
    provider = seqio.get_mixture_or_task(name)
    if (objective := config.objective) is not None:
        provider = map_tasks(provider, lambda task: with_objective(task, objective))
    if functions := [metric_of(each) for each in config.metrics]:
        provider = map_tasks(provider, lambda task: task.replace(metric_fns=functions, metric_objs=[]))
    return provider


def map_tasks(provider: Provider, function: Callable[[seqio.Task], seqio.Task]) -> Provider:
    """`function` of the task; of a mixture, the mixture of `function` of its tasks at the same rates."""
    if isinstance(provider, seqio.Task):
        return function(provider)
    rates = [(function(task), lambda _, task=task: provider.get_rate(task)) for task in provider.tasks]
    return seqio.Mixture(provider.name, rates, sample_fn=provider._sample_fn)


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
    layout_of(config.converter).check_lengths(config.task_feature_lengths)
    try:
        splits = provider.splits
    except ValueError:  # how SeqIO says that a source has none, as a data set that TFDS cannot get
        raise UserError(
            f"{provider.name} has no data here: its source has no splits. A data set of TensorFlow Datasets is cached, "
            f"or in TFDS_DATA_DIR, or comes over the network: make cache TASK={provider.name}"
        ) from None
    config.check_task(provider.name, provider.output_features, splits)
    for task in tasks_of(provider):
        if config.split in task.splits:
            _check_readable(task, config)
            _check_objective(task, config)
    if isinstance(provider, seqio.Mixture):
        _check_rates(provider)


def _check_rates(mixture: seqio.Mixture) -> None:
    rates = []
    for task in mixture.tasks:
        where = f"The rate of {task.name} in the mixture {mixture.name}"
        try:
            rates.append(mixture.get_rate(task))
        except (ValueError, TypeError, ZeroDivisionError) as error:  # of a function, or of a mixture inside it
            raise UserError(
                f"{where} cannot be computed ({error}). A function gets the task, whose examples may not be counted "
                "before it is cached; the rate of a mixture inside another one is a number."
            ) from error
    if not all(0.0 <= rate < float("inf") for rate in rates) or not any(rates):
        raise UserError(
            f"The rates of the mixture {mixture.name} are {rates}: expected positive numbers, or 0 for some."
        )


def _check_readable(task: seqio.Task, config: DatasetConfig) -> None:
    modules = config.module_import
    if reads_cache(task, config):
        if not task.cache_dir:
            raise UserError(
                f"{task.name} {NOT_CACHED}. Type: {cache_command(task.name, modules)}  (or read it without a cache: "
                "USE_CACHED_TASKS = False)"
            )
        again = f"Type: {cache_command(task.name, modules, force=True)}"
        try:
            if not task._get_cached_source(config.split).list_shards(config.split):
                raise FileNotFoundError("it has no files")
        except Exception as error:  # seqio opens the info and stats files of the split: gone or torn
            raise UserError(
                f"The cache of {task.name} cannot be read for the split {config.split!r} (splits of the task: "
                f"{', '.join(sorted(task.source.splits))}): {error}. {again}"
            ) from error
    elif task.requires_caching:
        raise UserError(f"{task.name} can only be read from a cache: set USE_CACHED_TASKS = True.")
    elif isinstance(task.source, seqio.TfdsDataSource):
        sources.require_prepared(task)
    # a name without wildcards is listed whether there is such a file or not
    elif isinstance(task.source, seqio.FileDataSource) and not any(
        tf.io.gfile.exists(str(path)) for path in task.source.list_shards(config.split)
    ):
        row = ROWS.get(task.name)
        export = f" To export its text, type: make data DATASET={row.dataset}" if row and row.dataset else ""
        raise UserError(f"The files of {task.name}, split {config.split!r}, are not there.{export}")
    else:
        sources.check_arguments(task)
        if config.num_epochs is None:  # a training
            sources.check_position(task, config.split, modules)


def _check_objective(task: seqio.Task, config: DatasetConfig) -> None:
    objective = objective_of(task)
    if objective is None:
        return
    # others may have vocabularies that are not known here
    vocabulary = from_seqio(task.output_features["targets"].vocabulary) if objective.needs_ids else None
    if found := objective.problems(task.name, config.task_feature_lengths, vocabulary, reserved_of(task)):
        raise UserError(" ".join(found))


def _unknown(name: str) -> str:
    return unknown_task(name, {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})
