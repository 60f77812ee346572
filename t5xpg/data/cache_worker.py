"""The process that caches tasks: imports TensorFlow and Beam, compares definitions, runs SeqIO's `cache_tasks_main`.

Started by `caching` with the number of a pipe as its argument: reads one request (a line of JSON) from the standard
input, writes reports (lines of JSON) to the pipe. It ends when its standard input closes.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import importlib.metadata
import inspect
import io
import json
import os
import re
import runpy
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from t5xpg.errors import UserError

_REPORT_SECONDS = 0.2


def main(pipe: int) -> int:
    """Serve one request. Returns the exit code."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from t5xpg.data.caching import MissingTextError

    with os.fdopen(pipe, "w", encoding="utf-8") as reports:
        report = functools.partial(_report, reports)
        try:
            plan = _plan(request)
            report(plan=plan)
            names = [entry["task"] for entry in plan if not entry["up_to_date"]]
            if names:
                _cache(names, request, report)
        except MissingTextError as error:
            report(user_error=str(error), datasets=error.datasets)
        except UserError as error:
            report(user_error=str(error))
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _report(reports: TextIO, **message: Any) -> None:
    reports.write(json.dumps(message) + "\n")
    reports.flush()


def _plan(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is to be done for each task: its definition, and whether the cache that is there was made from the same."""
    import t5xpg.tasks  # noqa: F401
    from t5xpg.data.caching import MissingTextError
    from t5xpg.data.providers import find_provider, import_modules, tasks_of
    from t5xpg.data.spec import DatasetConfig

    import_modules(request["module_import"])
    name = request["task"]
    tasks = tasks_of(find_provider(DatasetConfig(name, {})))
    cacheable = [task for task in tasks if task.supports_caching]
    if not cacheable and not request["only_missing"]:
        raise UserError(
            f"{name} has nothing to cache: its preprocessors hold no seqio.CacheDatasetPlaceholder. "
            "Train from the source: USE_CACHED_TASKS = False."
        )
    plan = []
    missing: list[MissingTextError] = []
    for task in cacheable:
        found = _made_by_others(task, Path(request["caches"])) if request["only_missing"] else None
        if found is not None:
            plan.append({"task": task.name, "definition": found, "up_to_date": True, "others": True})
            continue
        try:
            plan.append(_planned(task, request))
        except MissingTextError as error:
            missing.append(error)
    if missing:
        datasets = sorted({name for error in missing for name in error.datasets})
        raise MissingTextError("\n".join(str(error) for error in missing), datasets)
    return plan


def _planned(task: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """The definition of one task as JSON, and whether our cache of it was made from the same."""
    import seqio

    from t5xpg.data.caching import read_identity

    definition = {
        "task": task.name,
        "source": {"kind": type(task.source).__name__, "splits": {s: _files(task, s) for s in sorted(task.splits)}},
        "preprocessors": [_describe(step) for step in _steps_before_cache(task)],
        "features": {key: _feature(feature) for key, feature in sorted(task.output_features.items())},
    }
    # as it will be read from the file
    definition = json.loads(json.dumps(definition))
    folder = seqio.get_task_dir_from_name(task.name)
    counts = [task.num_input_examples(split) for split in task.splits]
    dataset, export = _export_of(task, Path(request["data_dir"]))
    return {
        "task": task.name,
        "folder": folder,
        "definition": definition,
        "dataset": dataset,
        "export": export,
        "examples": sum(counts) if None not in counts else None,
        "versions": {package: importlib.metadata.version(package) for package in ("seqio", "t5", "apache-beam")},
        "up_to_date": not request["force"] and read_identity(Path(request["caches"]) / folder) == definition,
        "others": False,
    }


def _made_by_others(task: Any, caches: Path) -> dict[str, Any] | None:
    """What is known of a cache that was not made by this program: its files and their sizes; None where it was.

    The tasks of the table are ours to cache, whoever did it before.
    """
    import tensorflow as tf

    from t5xpg.data.caching import IDENTITY
    from t5xpg.tasks import TASKS

    folder = task.cache_dir
    if not folder or task.name in TASKS:
        return None
    if Path(folder).parent.resolve() == caches.resolve() and (Path(folder) / IDENTITY).exists():
        return None
    names = sorted(tf.io.gfile.listdir(folder))
    return {"task": task.name, "files": {name: tf.io.gfile.stat(os.path.join(folder, name)).length for name in names}}


def _cache(names: Sequence[str], request: Mapping[str, Any], report: Callable[..., None]) -> None:
    """Run SeqIO's script in this process, as its command line would, with a count of the documents that it reads."""
    import seqio
    from seqio import beam_utils

    state = {"count": 0, "last": 0.0}

    def increment_counter(self: Any, counter: str) -> None:
        if counter != "examples":
            return
        if not state["last"]:
            report(count=0)
            state["last"] = time.monotonic()
        state["count"] += 1
        if time.monotonic() - state["last"] >= _REPORT_SECONDS:
            report(count=state["count"])
            state.update(count=0, last=time.monotonic())

    # Counts where Beam runs the pipeline in this process; elsewhere the metric stays Beam's own.
    beam_utils.PreprocessTask._increment_counter = increment_counter
    sys.argv = [
        "cache_tasks_main",
        f"--tasks={_comma_separated(map(re.escape, names))}",
        f"--output_cache_dir={request['output']}",
        f"--pipeline_options={_comma_separated(request['pipeline_options'])}",
        "--ignore_other_caches",
        *(f"--module_import={module}" for module in ("t5xpg.tasks", *request["module_import"])),
    ]
    try:
        runpy.run_module("seqio.scripts.cache_tasks_main", run_name="__main__", alter_sys=True)
    except SystemExit as exit:
        if exit.code:
            raise
    for name in names:
        folder = Path(request["output"]) / seqio.get_task_dir_from_name(name)
        if not (folder / "COMPLETED").is_file():
            raise RuntimeError(f"cache_tasks_main ended without completing {name}")
        if request["put_in_order"]:
            for split in seqio.TaskRegistry.get(name).splits:
                _put_in_order(sorted(folder.glob(f"{split}.tfrecord-*-of-*")))
    report(count=state["count"], note="written")


def _put_in_order(shards: Sequence[Path]) -> None:
    """Deal the records of a split out to its shards in the order of their digests.

    Beam shuffles documents by random numbers and by the timing of its threads, so that no two caches of the same text
    are equal. The order of digests is as good a shuffle, and the same each time.
    """
    import tensorflow as tf

    records = [
        tf.train.Example.FromString(record).SerializeToString(deterministic=True)
        for record in tf.data.TFRecordDataset([str(path) for path in shards]).as_numpy_iterator()
    ]
    records.sort(key=lambda record: hashlib.sha256(record).digest())
    for number, path in enumerate(shards):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records[number :: len(shards)]:
                writer.write(record)


def _comma_separated(values: Any) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(list(values))
    return line.getvalue()


def _steps_before_cache(task: Any) -> list[Any]:
    import seqio

    steps = list(task.preprocessors)
    place = next(i for i, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder))
    return steps[:place]


def _files(task: Any, split: str) -> list[Any] | str:
    """Digests of the files of a split, or what else says what the source reads.

    Raises UserError where files are not there: MissingTextError where an export would bring them.
    """
    import seqio

    from t5xpg.data.caching import MissingTextError
    from t5xpg.data.task_names import possible_dataset
    from t5xpg.files import sha256_of_file
    from t5xpg.tasks import TASKS

    source = task.source
    if isinstance(source, seqio.TfdsDataSource):
        read = source.tfds_dataset
        return f"{read.name} {split}={(read._split_map or {}).get(split, split)}"
    if isinstance(source, seqio.FunctionDataSource):
        return [_describe(source._dataset_fn)]
    if not isinstance(source, seqio.FileDataSource):
        return _without_addresses(str(source))
    paths = [Path(name) for name in source.list_shards(split)]
    if not paths or not all(path.is_file() for path in paths):
        message = f"The text of {task.name}, split {split}, is not there ({source._split_to_filepattern[split]})."
        dataset = possible_dataset(task.name) if task.name in TASKS else None
        if dataset is None:
            raise UserError(message)
        raise MissingTextError(f"{message} Type: make data DATASET={dataset}", [dataset])
    return [{"bytes": path.stat().st_size, "sha256": sha256_of_file(path)} for path in paths]


def _export_of(task: Any, data_dir: Path) -> tuple[str | None, dict[str, str] | None]:
    """The export that a task of the table reads, and its identity; None for other tasks."""
    from t5xpg.data.manifest import find_manifests, read_manifest
    from t5xpg.data.task_table import split_pattern
    from t5xpg.tasks import TASKS

    if task.name not in TASKS:
        return None, None
    patterns = set(task.source._split_to_filepattern.values())
    for dataset, folder in find_manifests(data_dir).items():
        identity = read_manifest(folder).identity
        if patterns == {split_pattern(folder, split) for split in identity}:
            return dataset, identity
    return None, None


def _describe(step: Any) -> Any:
    """A preprocessor as JSON: its name, the digest of its source, its arguments."""
    if isinstance(step, functools.partial):
        inner = _describe(step.func)
        return inner | {"arguments": [_describe_value(v) for v in step.args] + [_describe_value(dict(step.keywords))]}
    name = f"{getattr(step, '__module__', '')}.{getattr(step, '__qualname__', type(step).__qualname__)}"
    try:
        source = inspect.getsource(inspect.unwrap(step) if callable(step) else type(step))
    except (OSError, TypeError):
        return {"function": name}
    return {"function": name, "source_sha256": hashlib.sha256(source.encode("utf-8")).hexdigest()}


def _describe_value(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _describe_value(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple | set | frozenset):
        return [_describe_value(item) for item in value]
    if callable(value):
        return _describe(value)
    return _without_addresses(repr(value))


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _feature(feature: Any) -> dict[str, Any]:
    from t5xpg.data.seqio_vocabularies import from_seqio

    try:
        vocabulary: Any = from_seqio(feature.vocabulary).to_json()
        vocabulary.pop("model_file", None)  # where it lies is no part of what it is
    except UserError:
        vocabulary = _without_addresses(str(feature.vocabulary))
    return {"vocabulary": vocabulary, "add_eos": feature.add_eos, "dtype": str(feature.dtype), "rank": feature.rank}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
