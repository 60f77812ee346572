"""Makes data: exports, vocabularies and caches, each with what it is made from. One process at a time makes a thing."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base import files, locks, paths, stores
from t5xpg.data.cache import caching
from t5xpg.data.cache.runners import LOCAL
from t5xpg.data.tasks.task_names import KnownTask
from t5xpg.data.text import export
from t5xpg.data.text.manifest import Manifest, find_manifests, read_manifest
from t5xpg.data.vocab import making
from t5xpg.data.vocab.record import VocabularyRecord
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.experiment.known_tasks import data_folder, known_task
from t5xpg.experiment.needs import Data


def export_dataset(name: str, **options: Any) -> Manifest:
    """`export.export_dataset` into the data folder. One process at a time exports a dataset; any others wait.

    options: `files`, `fields`, `limit`, `force` and the function's other options.
    """
    with _export_lock(name):
        return export.export_dataset(name, data_dir=paths.data_directory(), **options)


def require_export(need: Data) -> Manifest:
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


def check_export(dataset: str) -> Manifest:
    """The record of an export. Raises UserError where its text was changed after the export."""
    folder = data_folder() / dataset
    stores.pull(folder)
    manifest = read_manifest(folder)
    manifest.check_files(folder)
    return manifest


def make_vocabulary(dataset: str, source: VocabularySettings | Path, **options: Any) -> VocabularyRecord:
    """`making.train_vocabulary` with settings or `making.copy_vocabulary` of a file, for an export, which is made where
    it is missing. options: those of the function."""
    require_export(Data(dataset))
    make: Callable[..., VocabularyRecord] = (
        making.copy_vocabulary if isinstance(source, Path) else making.train_vocabulary
    )
    with _export_lock(dataset):  # the vocabulary lies in the export's folder
        return make(dataset, source, data_dir=paths.data_directory(), **options)


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
    row = known_task(task)
    if row is not None and row.dataset is not None:
        require_export(Data(row.dataset))
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
                require_export(Data(name))


def pull_for_task(row: KnownTask | None) -> None:
    """Pull the cache of a task of the table; all caches and texts for a user's task or mixture, which may read any."""
    if row is None:
        for folder in (paths.cache_directory(), paths.data_directory()):
            stores.pull_all(folder)
    else:
        stores.pull(paths.cache_directory() / row.cached_as)


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
