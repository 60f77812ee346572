"""What has to be there before training: exports, vocabularies, caches. Makes what is missing, refuses what differs.

`state_of` says what there is: the one answer that `prepare`, `make check` and the others go by.
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
    """What there is of what a stream reads, and what `prepare` does about the rest.

    row: what the table has of the task; None for tasks of users, of whose text nothing is known without TensorFlow.
    data, vocabularies: the exports and vocabularies that have to be there. missing: the commands that `prepare` runs
    first. problems: why it refuses, each with what to type.
    """

    row: task_names.Row | None
    data: tuple[Data, ...]
    vocabularies: tuple[Vocabulary, ...]
    missing: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether the stream can be read as it is."""
        return not self.missing and not self.problems


def state_of(config: DatasetConfig, needed: Sequence[Need] = (), *, compare: bool = False) -> State:
    """What there is of what `config` reads. needed: what its experiment says that it needs.

    compare: whether a cache is compared with all that its task is now, for which TensorFlow is started where something
    has changed since the last time. Otherwise its files are looked at, and its text.
    """
    task, folder = config.mixture_or_task_name, paths.data_directory()
    row = row_of(task, needed)
    exports, made = find_manifests(folder), find_vocabularies(folder)
    stated = {need.dataset: need for need in needed if isinstance(need, Data)}
    # a task of a user may read all that its experiment needs
    trained = [need for need in needed if isinstance(need, Vocabulary) and (row is None or _reads(task, need))]
    names = list(stated) if row is None else [row.dataset] if row.dataset else []
    names += [need.dataset for need in trained if need.name_in_tasks not in made]
    data = [stated.get(name, Data(name)) for name in dict.fromkeys(names)]
    missing: list[str] = []
    problems: list[str] = []
    for need in data:
        with _noted(problems):
            if need.dataset in exports:
                _check_export(need.dataset)
            else:
                missing.append(need.command)
                need.check()
    for each in trained:
        with _noted(problems):
            if each.name_in_tasks in made:
                each.check_made(read_record(made[each.name_in_tasks]))
            else:
                missing.append(each.command)
                each.check()
    if row is not None:
        with _noted(problems):
            if not isinstance(row.vocabulary, PlannedIds):
                check_model_of(row.vocabulary)
            cache = paths.cache_directory() / row.cached_as
            if config.use_cached and not (cache / caching.COMPLETED).is_file():
                missing.append(task_names.cache_command(task))
            elif config.use_cached and not problems:  # a cache can only be compared with a text that is whole
                if row.dataset in exports:
                    text = read_manifest(exports[row.dataset]).identity
                    problems += filter(None, [caching.problem(cache, text, task_names.cache_command(task, force=True))])
                if compare and not missing and not problems:
                    compare_caches(config)
    return State(row, tuple(data), tuple(trained), tuple(missing), tuple(dict.fromkeys(problems)))


def compare_caches(config: DatasetConfig) -> None:
    """Raise UserError, as `prepare` does, where caches that there are were made from something else than there is now.

    Starts TensorFlow, unless all is as it was when that was last seen.
    """
    with contextlib.suppress(caching.MissingTextError):  # it is exported first
        _cached(config, compare_only=True)


@contextlib.contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Keep the message of a UserError, and go on."""
    try:
        yield
    except UserError as error:
        problems.append(str(error))


def _reads(task: str, need: Vocabulary) -> bool:
    return task.endswith(f"_{need.name_in_tasks}")


def row_of(task: str, needed: Sequence[Need] = ()) -> task_names.Row | None:
    """What the table has of a task; None for tasks of users."""
    fields, entries = dataset_fields(needed), vocabularies(needed)
    dataset = task_names.dataset_of(task, fields, entries)
    if dataset is None:
        return next((row for row in task_names.tfds_rows(entries) if row.name == task), None)
    row = task_names.row_of(task, dataset, entries)
    return row if row.is_of(fields[dataset]) else None


def dataset_fields(needed: Sequence[Need] = ()) -> dict[str, tuple[str, ...]]:
    """The fields of the rows of the datasets that are known by name, of the exports, and of those that are needed."""
    fields = {name: dataset.fields for name, dataset in built_in().items()}
    fields |= {need.dataset: need.field_names for need in needed if isinstance(need, Data)}
    for name, folder in find_manifests(paths.data_directory()).items():
        fields.setdefault(name, TEXT)
        with contextlib.suppress(UserError):  # said where it is read
            fields[name] = read_manifest(folder).fields
    return fields


def vocabularies(needed: Sequence[Need] = ()) -> list[task_names.NamedVocabulary]:
    """The vocabularies of the table, and those that are needed and not there yet."""
    folder = paths.data_directory()
    found, made = list(task_names.vocabularies(folder)), find_vocabularies(folder)
    for need in needed:
        if isinstance(need, Vocabulary) and need.name_in_tasks not in made:
            found += task_names.entries_of(need.name_in_tasks, need.planned())
    return found


def prepare(config: DatasetConfig, needed: Sequence[Need] = ()) -> DataIdentity:
    """Make what `config` reads and is not there yet, and say what it is. needed: as of `state_of`.

    What is there is used only if it is what it says, and made from what there is now: UserError otherwise, with what to
    type. A task or mixture that is not of our table is cached too, unless it cannot be or its owner has done so with
    SeqIO. Read without a cache, it is left to its owner: the data process says what it lacks.
    """
    task, state = config.mixture_or_task_name, state_of(config, needed)
    if state.problems:
        raise UserError("\n".join(state.problems))
    manifests = {need.dataset: _exported(need) for need in state.data}
    for each in state.vocabularies:
        if each.name_in_tasks not in find_vocabularies(paths.data_directory()):
            if each.tokenizer is None:
                train_vocabulary(each.dataset, each.settings, name=each.name)
            else:
                copy_vocabulary(each.dataset, Path(each.tokenizer), name=each.name, **each.copied)
    if state.row is not None and state.row.dataset is not None:
        manifest = manifests[state.row.dataset]
        if note := _note(state.row.dataset, manifest):
            print(note, flush=True)
        cached = _cached(config) if config.use_cached else None
        return DataIdentity(identity_of_text(state.row, manifest), cached, manifest.to_json())
    cached = _cached(config) if config.use_cached else {}
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


def identity_of_text(row: task_names.Row, manifest: Manifest) -> dict[str, Any]:
    """What a task of the table reads: its dataset, and the digests of the splits."""
    return {"task": row.name, "dataset": row.dataset, "sha256": manifest.identity}


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
    compare_only: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Cache a task unless that is done; returns the identity, as `caching.cache_task` does, which takes the `options`.

    Exports first what is missing of our own text, for the tasks of a mixture too; with `compare_only` nothing is made.
    """
    runner = runner or caching.DEFAULT_RUNNER
    caching.resolve_runner(runner, beam_options, staging)  # before the export, which can take long
    row = row_of(task)
    if row is not None and row.dataset is not None and not compare_only:
        _exported(Data(row.dataset))
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
                compare_only=compare_only,
                **options,
            )
        except caching.MissingTextError as error:
            if compare_only or tried.intersection(error.datasets):
                raise
            tried.update(error.datasets)
            for name in error.datasets:
                _exported(Data(name))


def _cached(config: DatasetConfig, *, compare_only: bool = False) -> dict[str, Any]:
    """The identity of the caches of a stream, which are made where they are not there."""

    def log(line: str) -> None:
        if not compare_only and not line.endswith("already"):
            print(line, flush=True)

    row = row_of(config.mixture_or_task_name)
    return cache(
        config.mixture_or_task_name,
        module_import=config.module_import,
        only_missing=row is None or row.dataset is None,  # others may have cached it
        compare_only=compare_only,
        log=log,
    )


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
    """`making.train_vocabulary` on an export, which is made where it is not there. options: `name`, `force`."""
    return _with_export(dataset, making.train_vocabulary, settings, options)


def copy_vocabulary(dataset: str, file: Path, **options: Any) -> VocabularyRecord:
    """`making.copy_vocabulary` for an export, which is made where it is not there. options: what else it takes."""
    return _with_export(dataset, making.copy_vocabulary, file, options)


def _with_export(
    dataset: str, make: Callable[..., VocabularyRecord], argument: Any, options: Mapping[str, Any]
) -> VocabularyRecord:
    _exported(Data(dataset))
    with _exporting(dataset):  # it lies in the export's folder
        return make(dataset, argument, data_dir=paths.data_directory(), **options)


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


def _exported(need: Data) -> Manifest:
    """The record of an export, which is made where it is not there. Raises UserError where its text was changed."""
    folder = paths.data_directory()
    files.remove_abandoned(folder)
    if need.dataset not in find_manifests(folder):
        with _exporting(need.dataset):
            if need.dataset not in find_manifests(folder):  # another process may have made it in the meantime
                return export.export_dataset(need.dataset, data_dir=folder, **need.options())
    return _check_export(need.dataset)


def _check_export(dataset: str) -> Manifest:
    folder = paths.data_directory() / dataset
    manifest = read_manifest(folder)
    manifest.check_files(folder)
    return manifest


def _digest(read: Any) -> str:
    """The SHA-256 of the only file of a split, or of what says what is read."""
    if isinstance(read, list) and len(read) == 1 and "sha256" in read[0]:
        return str(read[0]["sha256"])
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode("utf-8")).hexdigest()


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
