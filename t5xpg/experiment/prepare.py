"""What has to be there before training: exported text and its cache. Makes what is missing, refuses what is another."""

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
from t5xpg.data.vocab.record import VocabularyRecord, check_model_of
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.data.vocab.vocabulary import Vocabulary


@dataclass(frozen=True)
class Source:
    """What a task reads: identities of its text and of its cache, None where they are not ours to know.

    manifest: the record of the export, which says more of the text than identifies it.
    """

    data: dict[str, Any]
    cache: dict[str, Any] | None = None
    manifest: dict[str, Any] | None = None


def dataset_of(task: str) -> str | None:
    """The dataset that a task of our table reads; None for other tasks."""
    fields, entries = dataset_fields(), _vocabularies()
    dataset = task_names.dataset_of(task, fields, entries)
    if dataset is None or not task_names.row_of(task, dataset, entries).is_of(fields[dataset]):
        return None
    return dataset


def dataset_fields() -> dict[str, tuple[str, ...]]:
    """The datasets that are known by name and the exports, each with the fields of its rows."""
    fields = {name: dataset.fields for name, dataset in built_in().items()}
    for name, folder in find_manifests(paths.data_directory()).items():
        fields.setdefault(name, TEXT)
        with contextlib.suppress(UserError):  # said where it is read
            fields[name] = read_manifest(folder).fields
    return fields


def row_of(task: str) -> task_names.Row | None:
    """What the table says of a task of ours; None for other tasks."""
    dataset = dataset_of(task)
    return None if dataset is None else task_names.row_of(task, dataset, _vocabularies())


def _vocabularies() -> tuple[task_names.NamedVocabulary, ...]:
    return task_names.vocabularies(paths.data_directory())


def _vocabulary(task: str, dataset: str) -> Vocabulary:
    return task_names.row_of(task, dataset, _vocabularies()).vocabulary


def prepare(config: DatasetConfig) -> Source:
    """Export and cache what `config` reads and is not there yet, and say what it is.

    What is there is used only if it is what it says, and made from what there is now: UserError otherwise, with what to
    type. A task or mixture that is not of our table is cached too, unless it cannot be or its owner has done so with
    SeqIO. Read without a cache, it is left to its owner: the data process says what it lacks.
    """
    task = config.mixture_or_task_name
    dataset = dataset_of(task)
    if dataset is not None:
        manifest = _exported(dataset)
        check_model_of(_vocabulary(task, dataset))
        if note := _note(dataset, manifest):
            print(note, flush=True)
        cached = _cached(config, only_missing=False) if config.use_cached else None
        return Source({"task": task, "dataset": dataset, "sha256": manifest.identity}, cached, manifest.to_json())
    if not config.use_cached:
        return Source({"task": task})
    cached = _cached(config, only_missing=True)
    definitions = [cached] if isinstance(cached.get("task"), str) else list(cached.values())
    sources = {
        definition["task"]: {
            "dataset": definition["task"],
            "sha256": {split: _digest(read) for split, read in definition["source"]["splits"].items()},
        }
        for definition in definitions
        if "source" in definition
    }
    return Source({"task": task, **({"sources": sources} if sources else {})}, cached or None)


def prepare_all(configs: Sequence[DatasetConfig]) -> Source:
    """`prepare` for each of the streams of a run, tasks that several read once; what the first one reads."""
    sources: dict[tuple[str, bool], Source] = {}
    for config in configs:
        key = (config.mixture_or_task_name, config.use_cached)
        if key not in sources:
            sources[key] = prepare(config)
    return next(iter(sources.values()))


def missing(config: DatasetConfig) -> list[str]:
    """The commands that `prepare` would have to run for `config`; for other tasks than ours that cannot be seen."""
    task = config.mixture_or_task_name
    dataset = dataset_of(task)
    if dataset is None:
        return []
    commands = []
    if dataset not in find_manifests(paths.data_directory()):
        commands.append(f"make data DATASET={dataset}")
    if config.use_cached and not (_cache(task, dataset) / caching.COMPLETED).is_file():
        commands.append(task_names.cache_command(task))
    return commands


def problems(config: DatasetConfig) -> list[str]:
    """Why `prepare` would refuse what is there for `config`, with what to type; as far as TensorFlow is not needed.

    For a task of our table: an export or a cache whose files are not as they were made, a cache of another text. For
    others nothing can be seen so.
    """
    task = config.mixture_or_task_name
    dataset = dataset_of(task)
    found: list[str] = []
    folder = paths.data_directory() / (dataset or "")
    if dataset is None or dataset not in find_manifests(paths.data_directory()):
        return found
    try:
        manifest = read_manifest(folder)
        manifest.check_files(folder)
        check_model_of(_vocabulary(task, dataset))
    except UserError as error:
        return [str(error)]  # a cache can only be compared with a text that is whole
    if config.use_cached:
        command = task_names.cache_command(task, force=True)
        found += filter(None, [caching.problem(_cache(task, dataset), manifest.identity, command)])
    return found


def _cache(task: str, dataset: str) -> Path:
    """The folder of the cache that a task or mixture of our table reads."""
    return paths.cache_directory() / task_names.row_of(task, dataset, _vocabularies()).cached_as


def cache(
    task: str,
    *,
    runner: str | None = None,
    beam_options: Sequence[str] = (),
    staging: str | None = None,
    module_import: Sequence[str] = (),
    force: bool = False,
    only_missing: bool = False,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Cache a task unless that is done; returns the identity, as `caching.cache_task` does.

    Exports first what is missing of our own text, for the tasks of a mixture too.
    """
    runner = runner or caching.DEFAULT_RUNNER
    caching.resolve_runner(runner, beam_options, staging)  # before the export, which can take long
    dataset = dataset_of(task)
    if dataset is not None:
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
                log=log,
            )
        except caching.MissingTextError as error:
            if tried.intersection(error.datasets):
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


def _cached(config: DatasetConfig, only_missing: bool) -> dict[str, Any]:
    return cache(
        config.mixture_or_task_name,
        module_import=config.module_import,
        only_missing=only_missing,
        log=_unless_there_already,
    )


def _digest(read: Any) -> str:
    """The SHA-256 of the only file of a split, or of what says what is read."""
    if isinstance(read, list) and len(read) == 1 and "sha256" in read[0]:
        return str(read[0]["sha256"])
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode("utf-8")).hexdigest()


def _unless_there_already(line: str) -> None:
    if not line.endswith("already"):
        print(line, flush=True)


def _exported(dataset: str) -> Manifest:
    """The record of an export, which is made where it is not there. Raises UserError where its text was changed."""
    folder = paths.data_directory() / dataset
    files.remove_abandoned(paths.data_directory())
    if dataset not in find_manifests(paths.data_directory()):
        with _exporting(dataset):
            # another process may have made it in the meantime
            if dataset not in find_manifests(paths.data_directory()):
                return export.export_dataset(dataset, data_dir=paths.data_directory())
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
