"""What has to be there before training: exported text and its cache. Makes what is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from t5xpg import paths
from t5xpg.data import caching, export
from t5xpg.data.datasets_table import built_in
from t5xpg.data.manifest import Manifest, find_manifests, read_manifest
from t5xpg.data.spec import DatasetConfig

# Suffixes of the tasks in `data.task_table`; that module costs an import of TensorFlow.
OBJECTIVES = ("span_corruption",)


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
    known = {*built_in(), *find_manifests(paths.data_directory())}
    fitting = [name for name in known for objective in OBJECTIVES if f"{task}_".startswith(f"{name}_{objective}_")]
    return max(fitting, key=len, default=None)


def prepare(config: DatasetConfig) -> Source:
    """Export and cache what `config` reads and is not there yet, and say what it is.

    Tasks that are not of our table are left to their owners: the data process says what they lack.
    """
    task = config.mixture_or_task_name
    dataset = dataset_of(task)
    if dataset is None:
        return Source({"task": task})
    manifest = _exported(dataset)
    cached = None
    if config.use_cached:
        cached = cache(task, module_import=config.module_import, log=_unless_there_already)
    return Source({"task": task, "dataset": dataset, "sha256": manifest.identity}, cached, manifest.to_json())


def missing(config: DatasetConfig) -> list[str]:
    """The commands that `prepare` would have to run for `config`."""
    task = config.mixture_or_task_name
    dataset = dataset_of(task)
    if dataset is None:
        return []
    commands = []
    if dataset not in find_manifests(paths.data_directory()):
        commands.append(f"make data DATASET={dataset}")
    if config.use_cached and not (paths.cache_directory() / task).is_dir():
        commands.append(f"make cache TASK={task}")
    return commands


def cache(
    task: str,
    *,
    runner: str | None = None,
    beam_options: Sequence[str] = (),
    module_import: Sequence[str] = (),
    force: bool = False,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Cache a task unless that is done; exports its dataset first where that is missing. Returns the identity."""
    dataset = dataset_of(task)
    if dataset is not None:
        _exported(dataset)
    return caching.cache_task(
        task,
        cache_dir=paths.cache_directory(),
        data_dir=paths.data_directory(),
        runner=runner or caching.DEFAULT_RUNNER,
        beam_options=list(beam_options),
        force=force,
        module_import=tuple(module_import),
        log=log,
    )


def _unless_there_already(line: str) -> None:
    if not line.endswith("already"):
        print(line, flush=True)


def _exported(dataset: str) -> Manifest:
    folder = paths.data_directory() / dataset
    if dataset in find_manifests(paths.data_directory()):
        return read_manifest(folder)
    return export.export_dataset(dataset, data_dir=paths.data_directory())
