"""Caches tasks with SeqIO's `cache_tasks_main`, on any of Apache Beam's runners. Imports TensorFlow and Beam."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import runpy
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import seqio
import tensorflow as tf

from t5xpg.data.cache_record import COMPLETED

_REPORT_SECONDS = 0.2
# Runners that hold the whole pipeline in this machine's memory: their caches can be put in order afterwards.
_IN_MEMORY = ("FnApiRunner", "DirectRunner")


def cache_tasks(
    names: Sequence[str],
    output: Path,
    runner: str,
    options: Sequence[str],
    modules: Sequence[str],
    report: Callable[[int, str], None],
) -> None:
    """Run SeqIO's script in this process, as its command line would, with a count of the documents that it reads.

    Caches the tasks below `output`. options: of Beam's pipeline; modules: which register the tasks; report: gets the
    number of documents since the last call, and what is being done.
    """
    from seqio import beam_utils

    state = {"count": 0, "last": 0.0}

    def increment_counter(self: Any, counter: str) -> None:
        if counter != "examples":
            return
        if not state["last"]:
            report(0, "")
            state["last"] = time.monotonic()
        state["count"] += 1
        if time.monotonic() - state["last"] >= _REPORT_SECONDS:
            report(int(state["count"]), "")
            state.update(count=0, last=time.monotonic())

    # Counts where Beam runs the pipeline in this process; elsewhere the metric stays Beam's own.
    beam_utils.PreprocessTask._increment_counter = increment_counter
    sys.argv = [
        "cache_tasks_main",
        f"--tasks={_comma_separated(map(re.escape, names))}",
        f"--output_cache_dir={output}",
        f"--pipeline_options={_comma_separated([f'--runner={runner}', *options])}",
        "--ignore_other_caches",
        *(f"--module_import={module}" for module in modules),
    ]
    try:
        runpy.run_module("seqio.scripts.cache_tasks_main", run_name="__main__", alter_sys=True)
    except SystemExit as exit:
        if exit.code:
            raise
    for name in names:
        folder = output / seqio.get_task_dir_from_name(name)
        if not (folder / COMPLETED).is_file():
            raise RuntimeError(f"cache_tasks_main ended without completing {name}")
        if runner in _IN_MEMORY:
            for split in seqio.TaskRegistry.get(name).splits:
                _put_in_order(sorted(folder.glob(f"{split}.tfrecord-*-of-*")))
    report(int(state["count"]), "written")


def _put_in_order(shards: Sequence[Path]) -> None:
    """Deal the records of a split out to its shards in the order of their digests.

    Beam shuffles documents by random numbers and by the timing of its threads, so that no two caches of the same text
    are equal. The order of digests is as good a shuffle, and the same each time.
    """
    records = [
        tf.train.Example.FromString(record).SerializeToString(deterministic=True)
        for record in tf.data.TFRecordDataset([str(path) for path in shards]).as_numpy_iterator()
    ]
    records.sort(key=lambda record: hashlib.sha256(record).digest())
    for number, path in enumerate(shards):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records[number :: len(shards)]:
                writer.write(record)


def _comma_separated(values: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(list(values))
    return line.getvalue()
