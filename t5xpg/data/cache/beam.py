"""Caching of tasks with SeqIO's `cache_tasks_main`, on any of Apache Beam's runners. Imports TensorFlow and Beam."""

import csv
import io
import re
import runpy
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import seqio
import tensorflow as tf

from t5xpg.data.cache.external_sort import DigestSorter, deal
from t5xpg.data.cache.record import COMPLETED

_REPORT_SECONDS = 0.2
_RECORDS_AT_ONCE = 1000
# Files that Beam leaves behind if a stage ran twice, for example because a worker was lost.
_TEMPORARY = "beam-temp-*"


def cache_tasks(
    names: Sequence[str],
    output: Path,
    runner: str,
    options: Sequence[str],
    modules: Sequence[str],
    report: Callable[[int, str], None],
    staging: str | None = None,
) -> None:
    """Cache tasks below `output`: runs SeqIO's script in this process, as its command line does, and counts documents.

    runner, options: of Beam's pipeline. modules: those that register the tasks. report: gets the number of documents
    since the last call, and a note on the work. staging: where Beam's workers and this machine do not share `output`, a
    folder that both can write, here or in a bucket: the cache is fetched from there.
    """
    unreported = _count_documents(report)
    for name in names:
        folder = seqio.get_task_dir_from_name(name)
        destination = str(output) if staging is None else f"{staging.rstrip('/')}/t5xpg-{uuid.uuid4().hex}"
        try:
            _run_script(name, destination, runner, options, modules)
            if staging is not None:
                report(0, "fetching")
                _fetch(f"{destination}/{folder}", output / folder)
        finally:
            if staging is not None and tf.io.gfile.exists(destination):
                tf.io.gfile.rmtree(destination)
        if not (output / folder / COMPLETED).is_file():
            raise RuntimeError(f"cache_tasks_main ended without completing {name}")
        for leftover in (output / folder).glob(_TEMPORARY):
            shutil.rmtree(leftover)
        for split in seqio.TaskRegistry.get(name).splits:
            report(0, f"putting {split} in order")
            _sort_shards(sorted((output / folder).glob(f"{split}.tfrecord-*-of-*")))
    report(unreported(), "written")


def _fetch(source: str, folder: Path) -> None:
    """Copy the files of a folder, which may be in a bucket, into the new `folder`."""
    folder.mkdir(parents=True)
    for name in tf.io.gfile.listdir(source):
        if not tf.io.gfile.isdir(f"{source}/{name.rstrip('/')}"):
            tf.io.gfile.copy(f"{source}/{name}", str(folder / name))


def _run_script(name: str, output: str, runner: str, options: Sequence[str], modules: Sequence[str]) -> None:
    sys.argv = [
        "cache_tasks_main",
        f"--tasks={_comma_separated([re.escape(name)])}",
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


def _count_documents(report: Callable[[int, str], None]) -> Callable[[], int]:
    """Make SeqIO report documents as it reads them; returns a function that gives the number not reported yet."""
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
    return lambda: int(state["count"])


def _sort_shards(shards: Sequence[Path]) -> None:
    """Deal a split's records to its shards in the order of their digests, in bounded memory. This shuffles as well as
    Beam, whose order depends on random numbers and timing, but the order is always the same, that of `local`."""
    if not shards:
        return
    scratch = shards[0].parent / ".order"
    sorter = DigestSorter(scratch)
    for records in tf.data.TFRecordDataset(list(map(str, shards))).batch(_RECORDS_AT_ONCE).as_numpy_iterator():
        sorter.add([tf.train.Example.FromString(record).SerializeToString(deterministic=True) for record in records])
    sorted_shards = [scratch.with_name(f".order-{number}") for number in range(len(shards))]
    deal(iter(sorter), sorted_shards)
    for path, shard in zip(sorted_shards, shards, strict=True):
        path.replace(shard)


def _comma_separated(values: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(list(values))
    return line.getvalue()
