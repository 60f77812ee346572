"""What has to be there before training: exports, vocabularies, caches. Makes what is missing, refuses what differs.

`state_of` says what there is, and is the one answer that `prepare`, `make check` and the others go by.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base import files, locks, paths
from t5xpg.base.errors import UserError
from t5xpg.data.cache import command as caching
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.tasks import task_names
from t5xpg.data.text import export
from t5xpg.data.text.datasets import built_in
from t5xpg.data.text.labelled import TEXT
from t5xpg.data.text.manifest import Manifest, find_manifests, read_manifest
from t5xpg.data.text.sources import Selection
from t5xpg.data.vocab import making
from t5xpg.data.vocab.record import VocabularyRecord, check_model_of, find_vocabularies, read_record
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.experiment.needs import Data, Need, PlannedIds, Vocabulary


@dataclass(frozen=True)
class DataIdentity:
    """What a task reads: identities of its text and of its cache, None where they are not ours to know.

    manifest: the record of the export, which says more of the text than identifies it.
    """

    data: dict[str, Any]
    cache: dict[str, Any] | None = None
    manifest: dict[str, Any] | None = None


@dataclass(frozen=True)
class State:
    """What there is of what a stream reads, as far as it is known without TensorFlow.

    row: what the table has of the task; None for tasks of users. dataset: the export that it reads; None for other
    sources. datasets, vocabularies: what has to be there, or be made. missing: the commands that `prepare` runs first.
    problems: why it refuses, each with what to type.
    """

    row: task_names.Row | None = None
    dataset: str | None = None
    datasets: tuple[str, ...] = ()
    vocabularies: tuple[Vocabulary, ...] = ()
    missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether the stream can be read as it is."""
        return not self.missing and not self.problems


def dataset_of(task: str, needed: Sequence[Need] = ()) -> str | None:
    """The dataset that a task of our table reads; None for other tasks."""
    return _find(task, needed)[1]


def row_of(task: str, needed: Sequence[Need] = ()) -> task_names.Row | None:
    """What the table has of a task; None for tasks of users."""
    return _find(task, needed)[0]


def _find(task: str, needed: Sequence[Need]) -> tuple[task_names.Row | None, str | None]:
    """What the table has of a task, and the export that it reads."""
    fields, entries = dataset_fields(needed), vocabularies(needed)
    dataset = task_names.dataset_of(task, fields, entries)
    if dataset is not None:
        row = task_names.row_of(task, dataset, entries)
        return (row, dataset) if row.is_of(fields[dataset]) else (None, None)
    return next((row for row in task_names.tfds_rows(entries) if row.name == task), None), None


def dataset_fields(needed: Sequence[Need] = ()) -> dict[str, tuple[str, ...]]:
    """The fields of the rows of the datasets that are known by name, of the exports, and of those that are needed."""
    fields = {name: dataset.fields for name, dataset in built_in().items()}
    fields |= {need.dataset: need.field_names for need in needed if isinstance(need, Data)}
    for name, folder in find_manifests(paths.data_directory()).items():
        fields.setdefault(name, TEXT)
        with contextlib.suppress(UserError):  # said where it is read
            fields[name] = read_manifest(folder).fields
    return fields


def vocabularies(needed: Sequence[Need] = ()) -> tuple[task_names.NamedVocabulary, ...]:
    """The vocabularies of the table, and those that are needed and not there yet."""
    there = find_vocabularies(paths.data_directory())
    planned = [need for need in needed if isinstance(need, Vocabulary) and need.in_tasks not in there]
    made = task_names.vocabularies(paths.data_directory())
    return (*made, *(entry for need in planned for entry in task_names.entries_of(need.in_tasks, need.planned())))


def state_of(config: DatasetConfig, needed: Sequence[Need] = (), *, compare: bool = False) -> State:
    """What there is of what `config` reads. needed: what its experiment says that it needs.

    compare: whether a cache is compared with all that its task is now, which may start TensorFlow; otherwise its files
    and its text are. Of tasks of users nothing is known; `cache_problem` compares their caches.
    """
    task = config.mixture_or_task_name
    row, dataset = _find(task, needed)
    exports, made = find_manifests(paths.data_directory()), find_vocabularies(paths.data_directory())
    # a task of a user may read all that its experiment needs
    trained = [
        need for need in needed if isinstance(need, Vocabulary) and (row is None or task.endswith(f"_{need.in_tasks}"))
    ]
    names = [dataset] if dataset is not None else [need.dataset for need in needed if row is None]
    names += [need.dataset for need in trained if need.in_tasks not in made]
    missing: list[str] = []
    problems: list[str | None] = []
    for name in dict.fromkeys(names):
        need = _stated(name, needed)
        if name in exports:
            problems.append(_message(_check_export, exports[name]))
        else:
            missing.append(f"make data DATASET={name}" if need is None else need.command)
            problems.append(_message(_check_source, name, need))
    for each in trained:
        if each.in_tasks in made:
            problems.append(_message(lambda each=each: each.difference(read_record(made[each.in_tasks]))))
        else:
            missing.append(each.command)
            problems.append(each.problem())
    if row is not None and not isinstance(row.vocabulary, PlannedIds):
        problems.append(_message(check_model_of, row.vocabulary))
    if config.use_cached and row is not None:
        folder = paths.cache_directory() / row.cached_as
        if not (folder / caching.COMPLETED).is_file():
            missing.append(task_names.cache_command(task))
        elif not any(problems):  # a cache can only be compared with a text that is whole
            if dataset in exports:
                command = task_names.cache_command(task, force=True)
                problems.append(caching.problem(folder, read_manifest(exports[dataset]).identity, command))
            if compare and not missing and not any(problems):
                problems.append(cache_problem(config))
    said = tuple(dict.fromkeys(filter(None, problems)))
    return State(row, dataset, tuple(dict.fromkeys(names)), tuple(trained), tuple(missing), said)


def _message(check: Callable[..., str | None], *arguments: Any) -> str | None:
    """What a check says, or raises."""
    try:
        return check(*arguments)
    except UserError as error:
        return str(error)


def _stated(dataset: str, needed: Sequence[Need]) -> Data | None:
    return next((need for need in needed if isinstance(need, Data) and need.dataset == dataset), None)


def _check_export(folder: Path) -> None:
    read_manifest(folder).check_files(folder)


def _check_source(dataset: str, need: Data | None) -> str | None:
    """Why a dataset cannot be exported, as far as it is known before it is read."""
    if need is not None and (problem := need.problem()):
        return problem
    export.check_source(dataset, **({} if need is None else need.options()))
    return None


def cache_problem(config: DatasetConfig) -> str | None:
    """Why `prepare` would refuse the caches that there are, compared with what their tasks are now; None for nothing.

    Starts TensorFlow, unless all is as it was when that was last seen.
    """
    try:
        _cached(config, compare_only=True)
    except caching.MissingTextError:
        return None  # exported first
    except UserError as error:
        return str(error)
    return None


def prepare(config: DatasetConfig, needed: Sequence[Need] = ()) -> DataIdentity:
    """Make what `config` reads and is not there yet, and say what it is. needed: as of `state_of`.

    What is there is used only if it is what it says, and made from what there is now: UserError otherwise, with what to
    type. A task or mixture that is not of our table is cached too, unless it cannot be or its owner has done so with
    SeqIO. Read without a cache, it is left to its owner: the data process says what it lacks.
    """
    task = config.mixture_or_task_name
    found = state_of(config, needed)
    if found.problems:
        raise UserError("\n".join(found.problems))
    manifests = {name: _exported(name, needed) for name in found.datasets}
    for each in found.vocabularies:
        _make_vocabulary(each)
    if found.dataset is not None:
        manifest = manifests[found.dataset]
        if note := _note(found.dataset, manifest):
            print(note, flush=True)
        cached = _cached(config) if config.use_cached else None
        return DataIdentity(
            {"task": task, "dataset": found.dataset, "sha256": manifest.identity}, cached, manifest.to_json()
        )
    if not config.use_cached:
        return DataIdentity({"task": task})
    cached = _cached(config)
    definitions = [cached] if isinstance(cached.get("task"), str) else list(cached.values())
    sources = {
        definition["task"]: {
            "dataset": definition["task"],
            "sha256": {split: _digest(read) for split, read in definition["source"]["splits"].items()},
        }
        for definition in definitions
        if "source" in definition
    }
    return DataIdentity({"task": task, **({"sources": sources} if sources else {})}, cached or None)


def prepare_all(configs: Sequence[DatasetConfig], needed: Sequence[Need] = ()) -> DataIdentity:
    """`prepare` for each of the streams of a run, tasks that several read once; what the first one reads."""
    found: dict[tuple[str, bool], DataIdentity] = {}
    for config in configs:
        key = (config.mixture_or_task_name, config.use_cached)
        if key not in found:
            found[key] = prepare(config, needed)
    return next(iter(found.values()))


def cache(
    task: str,
    *,
    runner: str | None = None,
    beam_options: Sequence[str] = (),
    staging: str | None = None,
    module_import: Sequence[str] = (),
    force: bool = False,
    only_missing: bool = False,
    compare_only: bool = False,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Cache a task unless that is done; returns the identity, as `caching.cache_task` does.

    Exports first what is missing of our own text, for the tasks of a mixture too; with `compare_only` nothing is made.
    """
    runner = runner or caching.DEFAULT_RUNNER
    caching.resolve_runner(runner, beam_options, staging)  # before the export, which can take long
    dataset = dataset_of(task)
    if dataset is not None and not compare_only:
        _exported(dataset)
    tried: set[str] = set()
    while True:
        try:
            return caching.cache_task(
                task,
                cache_dir=paths.cache_directory(),
                data_dir=paths.data_directory(),
                runner=runner,
                beam_options=list(beam_options),
                staging=staging,
                force=force,
                module_import=tuple(module_import),
                only_missing=only_missing,
                compare_only=compare_only,
                log=log,
            )
        except caching.MissingTextError as error:
            if compare_only or tried.intersection(error.datasets):
                raise
            tried.update(error.datasets)
            for name in error.datasets:
                _exported(name)


def export_dataset(
    name: str,
    *,
    given: Mapping[str | None, list[Path]] | None = None,
    select: Selection | None = None,
    **options: Any,
) -> Manifest:
    """`export.export_dataset` into the data folder: one process at a time for a dataset, the next ones wait.

    given: the user's files; select: some files of the dataset; options: `fields`, `limit`, `force` and what else it
    takes.
    """
    with _exporting(export.exported_name(name, select)):
        return export.export_dataset(name, data_dir=paths.data_directory(), files=given, select=select, **options)


def train_vocabulary(dataset: str, settings: VocabularySettings, **options: Any) -> VocabularyRecord:
    """`vocabulary_making.train_vocabulary` on an export, which is made where it is not there.

    options: `name`, `force`.
    """
    _exported(dataset)
    with _exporting(dataset):  # it lies in the export's folder
        return making.train_vocabulary(dataset, settings, data_dir=paths.data_directory(), **options)


def copy_vocabulary(dataset: str, file: Path, **options: Any) -> VocabularyRecord:
    """`vocabulary_making.copy_vocabulary` for an export, which is made where it is not there.

    options: `name`, `force`, `extra_ids`, `eos_token`, `pad_token`.
    """
    _exported(dataset)
    with _exporting(dataset):
        return making.copy_vocabulary(dataset, file, data_dir=paths.data_directory(), **options)


@contextlib.contextmanager
def _exporting(name: str) -> Iterator[None]:
    """The lock of a dataset's export; also removes what killed exports left."""
    folder = paths.data_directory()
    files.remove_abandoned(folder)
    if not name.isidentifier():  # refused by the export; no file is to be named so
        yield
        return
    with locks.hold(folder / f".{name}.lock", doing=f"exporting {name} to {folder}", instead="", wait=print):
        yield


def _make_vocabulary(need: Vocabulary) -> None:
    """Make a vocabulary that is not there."""
    if need.in_tasks in find_vocabularies(paths.data_directory()):
        return
    if need.tokenizer is None:
        train_vocabulary(need.dataset, need.settings, name=need.called)
    else:
        copy_vocabulary(need.dataset, Path(need.tokenizer), name=need.called, **need.copied)


def _cached(config: DatasetConfig, *, compare_only: bool = False) -> dict[str, Any]:
    """The identity of the caches of a stream, which are made where they are not there."""
    task = config.mixture_or_task_name
    return cache(
        task,
        module_import=config.module_import,
        only_missing=dataset_of(task) is None,  # of others, who may have cached it
        compare_only=compare_only,
        log=(lambda line: None) if compare_only else _unless_there_already,
    )


def _digest(read: Any) -> str:
    """The SHA-256 of the only file of a split, or of what says what is read."""
    if isinstance(read, list) and len(read) == 1 and "sha256" in read[0]:
        return str(read[0]["sha256"])
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode("utf-8")).hexdigest()


def _unless_there_already(line: str) -> None:
    if not line.endswith("already"):
        print(line, flush=True)


def _exported(dataset: str, needed: Sequence[Need] = ()) -> Manifest:
    """The record of an export, which is made where it is not there. Raises UserError where its text was changed."""
    folder = paths.data_directory() / dataset
    files.remove_abandoned(paths.data_directory())
    if dataset not in find_manifests(paths.data_directory()):
        with _exporting(dataset):
            # another process may have made it in the meantime
            if dataset not in find_manifests(paths.data_directory()):
                need = _stated(dataset, needed)
                options = {} if need is None else need.options()
                return export.export_dataset(dataset, data_dir=paths.data_directory(), **options)
    manifest = read_manifest(folder)
    manifest.check_files(folder)
    return manifest


def _note(dataset: str, manifest: Manifest) -> str | None:
    """What is to be said of an export that is used, but is not the whole text that its name stands for."""
    if chosen := manifest.source.get("select"):
        return f"data: {dataset} is a piece of {manifest.source.get('of')}, the files {chosen}"
    known = built_in().get(dataset)
    command = f"make data DATASET={dataset} FORCE=1"
    if manifest.is_cut:
        rest = "" if manifest.source.get("streamed") else f"; all of it: {command}"
        return f"data: {dataset} was exported with {' '.join(manifest.limits)}{rest}"
    if known is None:
        return None
    described = json.loads(json.dumps(known.source.describe()))
    if manifest.source.get("kind") != described["kind"]:
        given = "files that were given" if manifest.source.get("kind") == "files" else "another source"
        return f"data: {dataset} was exported from {given}, not from its known source"
    if manifest.source != described or (known.sha256 and manifest.identity != dict(known.sha256)):
        return f"data: {dataset} was exported from an earlier definition of its text; by the present one: {command}"
    return None
