"""Prepares the data of a training: exports, vocabularies, caches. Missing ones are made, outdated ones refused."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from t5xpg.base import files, locks, paths, stores
from t5xpg.base.errors import UserError
from t5xpg.data.cache import caching
from t5xpg.data.cache.record import Record
from t5xpg.data.cache.runners import LOCAL
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.tasks import task_names
from t5xpg.data.text import export
from t5xpg.data.text.datasets import built_in
from t5xpg.data.text.manifest import Manifest, find_manifests
from t5xpg.data.vocab import making
from t5xpg.data.vocab.record import VocabularyRecord, find_vocabularies
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.experiment.data_state import (
    cached_as,
    check_export,
    data_folder,
    others_may_cache,
    pull_for_task,
    row_of,
    state_of,
)
from t5xpg.experiment.needs import Data, Need


@dataclass(frozen=True)
class DataIdentity:
    """The identity of a task's data. data: that of its text. cache: that of its cache; None if it is not known.

    manifest: the record of the export, which says more about the text than its identity; None without an export.
    """

    data: dict[str, Any]
    cache: dict[str, Any] | None = None
    manifest: dict[str, Any] | None = None


def prepare(config: DatasetConfig, needs: Sequence[Need] = ()) -> DataIdentity:
    """Make the missing data of `config`; returns the identity of the data. needs: see `state_of`.

    Existing data is used only if it matches its record and its present source; else UserError says what to type. A
    task or mixture outside the table is cached too, unless that is impossible, or its owner has cached it with SeqIO.
    If it is read without a cache, its owner has to prepare it: the data process says what is missing.
    """
    task, state = config.mixture_or_task_name, state_of(config, needs)
    if state.problems:
        raise UserError("\n".join(state.problems))
    manifests = {need.dataset: state.manifests.get(need.dataset) or _require_export(need) for need in state.data}
    for vocabulary in state.vocabularies:
        if vocabulary.name_in_tasks not in find_vocabularies(data_folder()):
            if vocabulary.tokenizer is None:
                train_vocabulary(vocabulary.dataset, vocabulary.settings, name=vocabulary.name)
            else:
                file, options = Path(vocabulary.tokenizer), vocabulary.copy_settings
                copy_vocabulary(vocabulary.dataset, file, name=vocabulary.name, **options)
    if state.row is not None and state.row.dataset is not None:
        manifest = manifests[state.row.dataset]
        if warning := _export_warning(state.row.dataset, manifest):
            print(warning, flush=True)
        cache_identity = _require_cache(config, state.cache) if config.use_cached else None
        return DataIdentity(identity_of_text(state.row, manifest), cache_identity, manifest.to_json())
    cache_identity = _require_cache(config) if config.use_cached else {}
    definitions = [cache_identity] if isinstance(cache_identity.get("task"), str) else list(cache_identity.values())
    sources = {
        definition["task"]: {
            "dataset": definition["task"],
            "sha256": {split: _digest(source) for split, source in definition["source"]["splits"].items()},
        }
        for definition in definitions
        if "source" in definition
    }
    return DataIdentity({"task": task, **({"sources": sources} if sources else {})}, cache_identity or None)


def identity_of_text(row: task_names.KnownTask, manifest: Manifest) -> dict[str, Any]:
    """The identity of the text of a task of the table: its dataset, and the digests of the splits."""
    return {"task": row.name, "dataset": row.dataset, "sha256": manifest.identity}


def prepare_all(configs: Sequence[DatasetConfig], needs: Sequence[Need] = ()) -> DataIdentity:
    """`prepare` for every stream of a run, once for each task. Returns the identity of the first stream's data."""
    identities: dict[tuple[str, bool], DataIdentity] = {}
    for config in configs:
        key = (config.mixture_or_task_name, config.use_cached)
        if key not in identities:
            identities[key] = prepare(config, needs)
    return next(iter(identities.values()))


def cache(
    task: str,
    *,
    runner: str = LOCAL,
    beam_options: Sequence[str] = (),
    staging: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Cache a task, unless it is cached. Takes the `options` of `caching.cache_task`, and returns the same identity.

    Missing exports are made first, for the tasks of a mixture too.
    """
    caching.resolve_runner(runner, beam_options, staging)  # before the export, which can take long
    row = row_of(task)
    if row is not None and row.dataset is not None:
        _require_export(Data(row.dataset))
    pull_for_task(row)
    exported: set[str] = set()
    while True:
        try:
            identity = caching.cache_task(
                task,
                cache_dir=paths.cache_directory(),
                data_dir=data_folder(),
                runner=runner,
                beam_options=list(beam_options),
                staging=staging,
                **options,
            )
            stores.push_all(paths.cache_directory())
            return identity
        except caching.MissingTextError as error:
            if exported.intersection(error.datasets):
                raise
            exported.update(error.datasets)
            for name in error.datasets:
                _require_export(Data(name))


def _require_cache(config: DatasetConfig, known: Record | None = None) -> dict[str, Any]:
    """The identity of a stream's caches, which are made where they are missing. known: the record of its cache, where
    it was compared already."""

    def log(line: str) -> None:
        if not line.endswith("already"):
            print(line, flush=True)

    task, cached = config.mixture_or_task_name, cached_as(config)
    identity = (
        known.definition
        if known is not None
        else cache(cached, module_import=config.module_import, only_missing=others_may_cache(row_of(task)), log=log)
    )
    return identity if cached == task else {cached: identity}


def export_dataset(name: str, **options: Any) -> Manifest:
    """`export.export_dataset` into the data folder. One process at a time exports a dataset; any others wait.

    options: `files`, `fields`, `limit`, `force` and the function's other options.
    """
    with _export_lock(name):
        return export.export_dataset(name, data_dir=paths.data_directory(), **options)


def train_vocabulary(dataset: str, settings: VocabularySettings, **options: Any) -> VocabularyRecord:
    """`making.train_vocabulary` on an export, which is made where it is missing. options: `name`, `force`."""
    return _with_export(dataset, making.train_vocabulary, settings, options)


def copy_vocabulary(dataset: str, file: Path, **options: Any) -> VocabularyRecord:
    """`making.copy_vocabulary` for an export, which is made where it is missing. options: its other options."""
    return _with_export(dataset, making.copy_vocabulary, file, options)


def _with_export(
    dataset: str, make: Callable[..., VocabularyRecord], argument: Any, options: Mapping[str, Any]
) -> VocabularyRecord:
    _require_export(Data(dataset))
    with _export_lock(dataset):  # the vocabulary lies in the export's folder
        return make(dataset, argument, data_dir=paths.data_directory(), **options)


@contextlib.contextmanager
def _export_lock(name: str) -> Iterator[None]:
    """Hold the lock of a dataset's export. Pull the export before, push it after, remove leftovers of killed ones."""
    folder = paths.data_directory()
    files.remove_abandoned(folder)
    if not name.isidentifier():  # the export refuses the name, which no file may have
        yield
        return
    with locks.hold(folder / f".{name}.lock", doing=f"exporting {name} to {folder}", instead="", wait=print):
        stores.pull(folder / name)
        yield
        stores.push(folder / name)


def _require_export(need: Data) -> Manifest:
    """The record of an export, made if it is missing. Raises UserError if its text was changed, or is another."""
    folder = data_folder()
    if need.dataset not in find_manifests(folder):
        with _export_lock(need.dataset):
            if need.dataset not in find_manifests(folder):  # another process may have made it in the meantime
                manifest = export.export_dataset(need.dataset, data_dir=folder, **need.options())
                need.check_made(manifest)
                return manifest
    need.check_made(manifest := check_export(need.dataset))
    return manifest


def _digest(source: Any) -> str:
    """The SHA-256 of a split's file; of any other source, that of its description."""
    if isinstance(source, list) and len(source) == 1 and "sha256" in source[0]:
        return str(source[0]["sha256"])
    return hashlib.sha256(json.dumps(source, sort_keys=True).encode("utf-8")).hexdigest()


def _export_warning(dataset: str, manifest: Manifest) -> str | None:
    """A warning that the export is a part of the named dataset, or of another source or definition; None if neither."""
    definition = built_in().get(dataset)
    if manifest.limits:
        whole = replace(manifest, limit=None, max_bytes=None).command(force=True)
        rest = "" if manifest.source.get("streamed") else f"; all of it: {whole}"
        return f"data: {dataset} was exported with {' '.join(manifest.limits)}{rest}"
    if definition is None:
        return None
    described = json.loads(json.dumps(definition.source.describe()))
    if manifest.source.get("kind") != described["kind"]:
        origin = "files that were given" if manifest.source.get("kind") == "files" else "another source"
        return f"data: {dataset} was exported from {origin}, not from its known source"
    if manifest.source != described or (definition.sha256 and manifest.identity != dict(definition.sha256)):
        command = f"make data DATASET={dataset} FORCE=1"
        return f"data: {dataset} was exported from an earlier definition of its text; by the present one: {command}"
    return None
