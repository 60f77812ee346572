"""The recipe of what a stream reads: its text, its vocabularies and its cache. What is missing of them is made, what is
outdated is refused."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.data.cache import caching
from t5xpg.data.cache.record import Record
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.tasks import task_names
from t5xpg.data.tasks.task_names import KnownTask
from t5xpg.data.text.datasets import built_in
from t5xpg.data.text.manifest import Manifest, find_manifests
from t5xpg.data.vocab.record import check_model_of, find_vocabularies, read_record
from t5xpg.experiment import making
from t5xpg.experiment.known_tasks import data_folder, known_tasks
from t5xpg.experiment.needs import Data, Need, PlannedIds, Vocabulary


@dataclass(frozen=True)
class DataIdentity:
    """The identity of a task's data. data: that of its text. cache: that of its cache; None if it is not known.

    manifest: the record of the export, which says more about the text than its identity; None without an export.
    """

    data: dict[str, Any]
    cache: dict[str, Any] | None = None
    manifest: dict[str, Any] | None = None


@dataclass(frozen=True)
class Recipe:
    """What a stream reads, as it was when the recipe was made (`Recipe.of`).

    task: the task of the table; None for a user's task, about whose text nothing is known without TensorFlow. data,
    vocabularies: the exports and vocabularies that the stream needs. manifests: the records of the exports that exist,
    by dataset. cache: the record of the cache, if it exists and was compared with its text. missing: the commands that
    make the missing data; `make` does the same. problems: the reasons why `make` refuses, each with what to type.
    """

    config: DatasetConfig
    task: KnownTask | None
    data: tuple[Data, ...]
    vocabularies: tuple[Vocabulary, ...]
    manifests: Mapping[str, Manifest]
    cache: Record | None
    missing: tuple[str, ...]
    problems: tuple[str, ...]

    @classmethod
    def of(cls, config: DatasetConfig, needs: Sequence[Need] = ()) -> "Recipe":
        """The recipe of the stream of `config`. needs: those of its experiment. Nothing is made, nor is TensorFlow
        started: of caches, those of exports are compared with what they were made from."""
        name, folder, tasks = config.mixture_or_task_name, data_folder(), known_tasks(needs)
        task = tasks.get(name)
        exports, existing = find_manifests(folder), find_vocabularies(folder)
        data_needs = {need.dataset: need for need in needs if isinstance(need, Data)}
        # a user's task may read everything that its experiment needs
        vocabularies = [one for one in needs if isinstance(one, Vocabulary)]
        vocabularies = [one for one in vocabularies if task is None or name.endswith(f"_{one.name_in_tasks}")]
        datasets = list(data_needs) if task is None else [task.dataset] if task.dataset else []
        datasets += [need.dataset for need in vocabularies if need.name_in_tasks not in existing]
        data = [data_needs.get(dataset, Data(dataset)) for dataset in dict.fromkeys(datasets)]
        manifests: dict[str, Manifest] = {}
        cache_record = None
        missing: list[str] = []
        problems: list[str] = []
        for need in data:
            with _collecting(problems):
                if need.dataset in exports:
                    manifests[need.dataset] = making.check_export(need.dataset)
                    need.check_made(manifests[need.dataset])
                else:
                    missing.append(need.command)
                    need.check()
        for vocabulary in vocabularies:
            with _collecting(problems):
                if vocabulary.name_in_tasks in existing:
                    vocabulary.check_made(read_record(existing[vocabulary.name_in_tasks]))
                else:
                    missing.append(vocabulary.command)
                    vocabulary.check()
        with _collecting(problems):
            making.pull_for_task(task)
        if task is not None:
            with _collecting(problems):
                if not isinstance(task.vocabulary, PlannedIds):
                    check_model_of(task.vocabulary)
                cache = paths.cache_directory() / task.cached_as
                if config.use_cached and not (cache / caching.COMPLETED).is_file():
                    missing.append(task_names.cache_command(name))
                elif config.use_cached and not problems and not missing and task.dataset in manifests:
                    described = tasks[task.cached_as].vocabulary.identity
                    command = task_names.cache_command(name, force=True)
                    cache_record = caching.checked_record(cache, manifests[task.dataset].identity, described, command)
        return cls(
            config, task, tuple(data), tuple(vocabularies), manifests, cache_record, tuple(missing),
            tuple(dict.fromkeys(problems)),
        )  # fmt: skip

    @property
    def ready(self) -> bool:
        """True if the stream can be read now."""
        return not self.missing and not self.problems

    def make(self) -> DataIdentity:
        """Make the missing data; returns the identity of the data.

        Existing data is used only if it matches its record and its present source; else UserError says what to type. A
        task or mixture outside the table is cached too, unless that is impossible, or its owner has cached it with
        SeqIO. If it is read without a cache, its owner has to prepare it: the data process says what is missing.
        """
        if self.problems:
            raise UserError("\n".join(self.problems))
        manifests = {
            need.dataset: self.manifests.get(need.dataset) or making.require_export(need) for need in self.data
        }
        for one in self.vocabularies:
            if one.name_in_tasks not in find_vocabularies(data_folder()):
                copied = {} if one.tokenizer is None else one.copy_settings
                source = one.settings if one.tokenizer is None else Path(one.tokenizer)
                making.make_vocabulary(one.dataset, source, name=one.name, **copied)
        if self.task is not None and self.task.dataset is not None:
            manifest = manifests[self.task.dataset]
            if warning := _export_warning(self.task.dataset, manifest):
                print(warning, flush=True)
            cache = self._make_cache() if self.config.use_cached else None
            return DataIdentity(identity_of_text(self.task, manifest), cache, manifest.to_json())
        cache = self._make_cache() if self.config.use_cached else {}
        definitions = [cache] if isinstance(cache.get("task"), str) else list(cache.values())
        sources = {
            definition["task"]: {
                "dataset": definition["task"],
                "sha256": {split: _digest(source) for split, source in definition["source"]["splits"].items()},
            }
            for definition in definitions
            if "source" in definition
        }
        identity = {"task": self.config.mixture_or_task_name, **({"sources": sources} if sources else {})}
        return DataIdentity(identity, cache or None)

    def _make_cache(self) -> dict[str, Any]:
        """The identity of the stream's caches, which are made where they are missing."""

        def log(line: str) -> None:
            if not line.endswith("already"):
                print(line, flush=True)

        if self.cache is not None:
            identity: Mapping[str, Any] = self.cache.definition
        else:
            modules, only_missing = self.config.module_import, self.others_may_cache
            identity = making.cache(self.cached_as, module_import=modules, only_missing=only_missing, log=log)
        name = self.config.mixture_or_task_name
        return dict(identity) if self.cached_as == name else {self.cached_as: identity}

    def compared(self) -> "Recipe":
        """The recipe, with the problem of a cache of TensorFlow Datasets that was made from another definition."""
        problems: list[str] = []
        if self.ready and self.config.use_cached and self.task is not None and self.others_may_cache:
            with _collecting(problems):
                self.compare_caches()
        return replace(self, problems=(*self.problems, *problems))

    def compare_caches(self) -> None:
        """Raise UserError, as `make` does, where an existing cache was made from another text or definition. Starts
        TensorFlow."""
        with contextlib.suppress(caching.MissingTextError):  # `make` exports the text first
            caching.cache_task(
                self.cached_as,
                cache_dir=paths.cache_directory(),
                data_dir=data_folder(),
                module_import=self.config.module_import,
                only_missing=self.others_may_cache,
                compare_only=True,
                log=lambda line: None,
            )

    @property
    def cached_as(self) -> str:
        """The task whose cache the stream reads. All objectives over one exported text share it."""
        if self.task is None or self.others_may_cache:
            return self.config.mixture_or_task_name
        return self.task.cached_as

    @property
    def others_may_cache(self) -> bool:
        """True if a cache that others made with SeqIO may be used: not for tasks of the table that read an export."""
        return self.task is None or self.task.dataset is None


def make_all(configs: Sequence[DatasetConfig], needs: Sequence[Need] = ()) -> DataIdentity:
    """`Recipe.make` for every stream of a run, once for each task. Returns the identity of the first stream's data."""
    identities: dict[tuple[str, bool], DataIdentity] = {}
    for config in configs:
        key = (config.mixture_or_task_name, config.use_cached)
        if key not in identities:
            identities[key] = Recipe.of(config, needs).make()
    return next(iter(identities.values()))


def identity_of_text(task: KnownTask, manifest: Manifest) -> dict[str, Any]:
    """The identity of the text of a task of the table: its dataset, and the digests of the splits."""
    return {"task": task.name, "dataset": task.dataset, "sha256": manifest.identity}


@contextlib.contextmanager
def _collecting(problems: list[str]) -> Iterator[None]:
    """Append the message of a UserError to `problems`, and go on after the block."""
    try:
        yield
    except UserError as error:
        problems.append(str(error))


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
