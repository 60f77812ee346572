"""What has to be there before training: exported text and its cache. Makes what is missing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from t5xpg import paths
from t5xpg.data import caching, export, task_names
from t5xpg.data.datasets_table import built_in
from t5xpg.data.manifest import Manifest, find_manifests, read_manifest
from t5xpg.data.spec import DatasetConfig


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
    return task_names.dataset_of(task, {*built_in(), *find_manifests(paths.data_directory())})


def prepare(config: DatasetConfig) -> Source:
    """Export and cache what `config` reads and is not there yet, and say what it is.

    A task or mixture that is not of our table is cached too, unless it cannot be or its owner has done so with SeqIO.
    Read without a cache, it is left to its owner: the data process says what it lacks.
    """
    task = config.mixture_or_task_name
    dataset = dataset_of(task)
    if dataset is not None:
        manifest = _exported(dataset)
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


def missing(config: DatasetConfig) -> list[str]:
    """The commands that `prepare` would have to run for `config`; for other tasks than ours that cannot be seen."""
    task = config.mixture_or_task_name
    dataset = dataset_of(task)
    if dataset is None:
        return []
    commands = []
    if dataset not in find_manifests(paths.data_directory()):
        commands.append(f"make data DATASET={dataset}")
    if config.use_cached and not (paths.cache_directory() / task).is_dir():
        commands.append(task_names.cache_command(task))
    return commands


def cache(
    task: str,
    *,
    runner: str | None = None,
    beam_options: Sequence[str] = (),
    module_import: Sequence[str] = (),
    force: bool = False,
    only_missing: bool = False,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Cache a task unless that is done; returns the identity, as `caching.cache_task` does.

    Exports first what is missing of our own text, for the tasks of a mixture too.
    """
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
                runner=runner or caching.DEFAULT_RUNNER,
                beam_options=list(beam_options),
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
    folder = paths.data_directory() / dataset
    if dataset in find_manifests(paths.data_directory()):
        return read_manifest(folder)
    return export.export_dataset(dataset, data_dir=paths.data_directory())
