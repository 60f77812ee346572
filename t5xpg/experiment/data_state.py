"""The state of the data that a stream reads: its export, vocabularies and cache, and which of them are missing.

Nothing is made here; `prepare` does that.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from t5xpg.base import paths, stores
from t5xpg.base.errors import UserError
from t5xpg.data.cache import caching
from t5xpg.data.cache.record import Record
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.tasks import task_names
from t5xpg.data.text.manifest import Manifest, find_manifests, read_manifest
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.record import check_model_of, find_vocabularies, read_record
from t5xpg.data.vocab.vocabulary import Vocabulary as Ids
from t5xpg.experiment.needs import Data, Need, PlannedIds, Vocabulary


def data_folder() -> Path:
    """`paths.data_directory`, with all files of its object store except the texts, which `check_export` pulls."""
    return _with_records(paths.data_directory())


@functools.cache
def _with_records(folder: Path) -> Path:
    stores.pull_all(folder, lambda name: not name.endswith(".jsonl"))
    return folder


def pull_for_task(row: task_names.KnownTask | None) -> None:
    """Pull the cache of a task of the table; all caches and texts for a user's task or mixture, which may read any."""
    if row is None:
        for folder in (paths.cache_directory(), paths.data_directory()):
            stores.pull_all(folder)
    else:
        stores.pull(paths.cache_directory() / row.cached_as)


@dataclass(frozen=True)
class DataState:
    """The state of the data that a stream reads.

    row: the task's row of the table; None for a user's task, about whose text nothing is known without TensorFlow.
    data, vocabularies: the exports and vocabularies that the stream needs. manifests: the records of the exports that
    exist, by dataset. cache: the record of the cache, if it exists and was compared with its text. missing: the
    commands that make the missing data; `prepare` does the same. problems: the reasons why `prepare` refuses, each with
    what to type.
    """

    row: task_names.KnownTask | None
    data: tuple[Data, ...]
    vocabularies: tuple[Vocabulary, ...]
    manifests: Mapping[str, Manifest]
    cache: Record | None
    missing: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """True if the stream can be read now."""
        return not self.missing and not self.problems


def state_of(config: DatasetConfig, needs: Sequence[Need] = (), *, compare: bool = False) -> DataState:
    """The state of the data that `config` reads. needs: those of its experiment.

    compare: whether the cache of a task of TensorFlow Datasets is compared with the present definition of the task,
    which starts TensorFlow. Caches of exports are always compared.
    """
    task, folder = config.mixture_or_task_name, data_folder()
    tasks = known_tasks(needs)
    row = tasks.get(task)
    exports, existing = find_manifests(folder), find_vocabularies(folder)
    data_needs = {need.dataset: need for need in needs if isinstance(need, Data)}
    # a user's task may read everything that its experiment needs
    vocabulary_needs = [one for one in needs if isinstance(one, Vocabulary)]
    vocabulary_needs = [one for one in vocabulary_needs if row is None or task.endswith(f"_{one.name_in_tasks}")]
    names = list(data_needs) if row is None else [row.dataset] if row.dataset else []
    names += [need.dataset for need in vocabulary_needs if need.name_in_tasks not in existing]
    data = [data_needs.get(name, Data(name)) for name in dict.fromkeys(names)]
    manifests: dict[str, Manifest] = {}
    cache_record = None
    missing: list[str] = []
    problems: list[str] = []
    for need in data:
        with _collecting(problems):
            if need.dataset in exports:
                manifests[need.dataset] = check_export(need.dataset)
                need.check_made(manifests[need.dataset])
            else:
                missing.append(need.command)
                need.check()
    for vocabulary in vocabulary_needs:
        with _collecting(problems):
            if vocabulary.name_in_tasks in existing:
                vocabulary.check_made(read_record(existing[vocabulary.name_in_tasks]))
            else:
                missing.append(vocabulary.command)
                vocabulary.check()
    with _collecting(problems):
        pull_for_task(row)
    if row is not None:
        with _collecting(problems):
            if not isinstance(row.vocabulary, PlannedIds):
                check_model_of(row.vocabulary)
            cache = paths.cache_directory() / row.cached_as
            if config.use_cached and not (cache / caching.COMPLETED).is_file():
                missing.append(task_names.cache_command(task))
            elif config.use_cached and not problems and not missing:  # a cache is compared with what it was made from
                if row.dataset in manifests:
                    cache_record = _cache_record(row, tasks[row.cached_as].vocabulary, manifests[row.dataset])
                elif compare:
                    compare_caches(config)
    problems = list(dict.fromkeys(problems))
    return DataState(
        row, tuple(data), tuple(vocabulary_needs), manifests, cache_record, tuple(missing), tuple(problems)
    )


def _cache_record(row: task_names.KnownTask, vocabulary: Ids, manifest: Manifest) -> Record | None:
    """The record of the cache of a task that reads an export; None where it has to be made. vocabulary: that of the
    task which is cached. Raises UserError for a cache that was made from another text, vocabulary or code."""
    described = {name: value for name, value in vocabulary.to_json().items() if name != "model_file"}
    command = task_names.cache_command(row.name, force=True)
    return caching.checked_record(paths.cache_directory() / row.cached_as, manifest.identity, described, command)


def compare_caches(config: DatasetConfig) -> None:
    """Raise UserError, as `prepare` does, where an existing cache was made from another text or definition. Starts
    TensorFlow."""
    row = row_of(config.mixture_or_task_name)
    with contextlib.suppress(caching.MissingTextError):  # `prepare` exports the text first
        caching.cache_task(
            cached_as(config),
            cache_dir=paths.cache_directory(),
            data_dir=data_folder(),
            module_import=config.module_import,
            only_missing=others_may_cache(row),
            compare_only=True,
            log=lambda line: None,
        )


def cached_as(config: DatasetConfig) -> str:
    """The task whose cache `config` reads. All objectives over one exported text share it."""
    row = row_of(config.mixture_or_task_name)
    return config.mixture_or_task_name if row is None or others_may_cache(row) else row.cached_as


def others_may_cache(row: task_names.KnownTask | None) -> bool:
    """True if a cache that others made with SeqIO may be used: not for tasks of the table that read an export."""
    return row is None or row.dataset is None


def check_export(dataset: str) -> Manifest:
    """The record of an export. Raises UserError where its text was changed after the export."""
    folder = data_folder() / dataset
    stores.pull(folder)
    manifest = read_manifest(folder)
    manifest.check_files(folder)
    return manifest


@contextlib.contextmanager
def _collecting(problems: list[str]) -> Iterator[None]:
    """Append the message of a UserError to `problems`, and go on after the block."""
    try:
        yield
    except UserError as error:
        problems.append(str(error))


def row_of(task: str, needs: Sequence[Need] = ()) -> task_names.KnownTask | None:
    """The row of a task in the table; None for tasks of users."""
    return known_tasks(needs).get(task)


def known_tasks(needs: Sequence[Need] = ()) -> dict[str, task_names.KnownTask]:
    """The tasks of the table by name, with those of exports and vocabularies of `needs` that do not exist yet."""
    folder = data_folder()
    existing = find_vocabularies(folder)
    fields = {need.dataset: need.field_names for need in needs if isinstance(need, Data)}
    planned = [
        entry
        for need in needs
        if isinstance(need, Vocabulary) and need.name_in_tasks not in existing
        for entry in task_names.entries_of(need.name_in_tasks, need.planned(), need.keeps_lines)
    ]
    return task_names.known_tasks(folder, fields, planned)


def unknown_task(task: str) -> str:
    """The message about a task that is not in the table."""
    return f"{task_names.unknown_task(task, known_tasks())} Tasks of your own need MODULE_IMPORT."


def objective_fragment(part: task_names.Part) -> str:
    """The file of gin/objectives with a task's objective; "" for span corruption, which needs none."""
    name = task_names.UL2_MIXTURE if part.mode is not None else part.objective.name
    return "" if name == task_names.SPAN_CORRUPTION else name


def vocabulary_of(name: str) -> Ids:
    """The vocabulary of a task of the table, or of a tokenizer's file. Raises UserError where neither exists."""
    if Path(name).exists():
        return vocabulary_of_file(Path(name))
    known = known_tasks()
    if name not in known:
        raise UserError(f"{task_names.unknown_task(name, known)} There is no such file either.")
    return known[name].vocabulary
