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
    with os.fdopen(pipe, "w", encoding="utf-8") as reports:
        report = functools.partial(_report, reports)
        try:
            plan = _plan(request)
            report(plan=plan)
            names = [entry["task"] for entry in plan if not entry["up_to_date"]]
            if names:
                _cache(names, request, report)
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
    import seqio

    import t5xpg.tasks  # noqa: F401
    from t5xpg.data.caching import read_identity
    from t5xpg.data.providers import find_provider, import_modules, tasks_of
    from t5xpg.data.spec import DatasetConfig

    import_modules(request["module_import"])
    name = request["task"]
    tasks = tasks_of(find_provider(DatasetConfig(name, {})))
    cacheable = [task for task in tasks if task.supports_caching]
    if not cacheable:
        raise UserError(
            f"{name} has nothing to cache: its preprocessors hold no seqio.CacheDatasetPlaceholder. "
            "Train from the source: USE_CACHED = False."
        )
    plan = []
    for task in cacheable:
        sources = {split: _files(task, split) for split in sorted(task.splits)}
        definition = {
            "task": task.name,
            "source": {"kind": type(task.source).__name__, "splits": sources},
            "preprocessors": [_describe(step) for step in _steps_before_cache(task)],
            "features": {key: _feature(feature) for key, feature in sorted(task.output_features.items())},
        }
        # as it will be read from the file
        definition = json.loads(json.dumps(definition))
        folder = seqio.get_task_dir_from_name(task.name)
        counts = [task.num_input_examples(split) for split in task.splits]
        dataset, export = _export_of(task, Path(request["data_dir"]))
        plan.append(
            {
                "task": task.name,
                "folder": folder,
                "definition": definition,
                "dataset": dataset,
                "export": export,
                "examples": sum(counts) if None not in counts else None,
                "versions": {
                    package: importlib.metadata.version(package) for package in ("seqio", "t5", "apache-beam")
                },
                "up_to_date": not request["force"] and read_identity(Path(request["caches"]) / folder) == definition,
            }
        )
    return plan


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
    """Digests of the files of a split. Raises UserError where they are not there."""
    import seqio

    from t5xpg.files import sha256_of_file

    if not isinstance(task.source, seqio.FileDataSource):
        return str(task.source)  # TFDS: name and version; functions: their names
    names = task.source.list_shards(split)
    paths = [Path(name) for name in names]
    if not paths or not all(path.is_file() for path in paths):
        dataset = task.name.partition("_span_corruption")[0]
        raise UserError(
            f"The text of {task.name}, split {split}, is not there ({task.source._split_to_filepattern[split]}). "
            f"Type: make data DATASET={dataset}"
        )
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
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _feature(feature: Any) -> dict[str, Any]:
    from t5xpg.data.seqio_vocabularies import from_seqio

    try:
        vocabulary: Any = from_seqio(feature.vocabulary).to_json()
        vocabulary.pop("model_file", None)  # where it lies is no part of what it is
    except UserError:
        vocabulary = re.sub(r" at 0x[0-9a-f]+", "", str(feature.vocabulary))
    return {"vocabulary": vocabulary, "add_eos": feature.add_eos, "dtype": str(feature.dtype), "rank": feature.rank}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
