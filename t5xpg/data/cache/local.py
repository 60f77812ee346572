"""Caching of a task on one machine without Beam: the files of SeqIO's caching script, in much less time and memory.

The source of each split streams through the steps before the placeholder with the script's seeds, and the examples go
to the files in the order of their digests, as `beam` leaves them: both make the same bytes. Imports TensorFlow.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.data.cache import local_format
from t5xpg.data.cache.external_sort import DigestSorter, deal
from t5xpg.data.cache.local_format import Column, Stats, names_in_order, parts, serialise
from t5xpg.data.cache.record import COMPLETED

Report = Callable[[int, str], None]  # gets the number of examples since the last call, and a note on the work
MIN_SHARDS = 64  # of SeqIO's script
_REPORT_SECONDS = 0.2
_BATCH = 32  # examples taken from TensorFlow at a time: few, for they may be books
_PREFETCH = 2  # batches that are read ahead
_INT64_MAX = 2**63 - 1


def cache_task(task: seqio.Task, folder: Path, command: str, report: Report) -> None:
    """Cache all splits of a task in the new `folder`. command: caches it with Beam. Raises UserError if the cache
    would not be the same each time."""
    folder.mkdir(parents=True)
    for split in task.splits:
        _cache_split(task, split, folder, command, report)
    # as SeqIO's script writes it
    (folder / COMPLETED).write_text("tfrecord", encoding="utf-8")


def shard_seed(task: str, index: int) -> int:
    """The seed of the steps for a file of the source, as SeqIO's script derives it."""
    digest = hashlib.md5(f"{task}shard{index}".encode(), usedforsecurity=False).digest()
    seed = int.from_bytes(digest, "little")
    return (seed if seed <= _INT64_MAX else int.from_bytes(digest[:7], "little")) % _INT64_MAX


def _cache_split(task: seqio.Task, split: str, folder: Path, command: str, report: Report) -> None:
    sources = len(task.source.list_shards(split))
    count = max(sources, MIN_SHARDS)
    vocabularies = {name: feature.vocabulary for name, feature in task.output_features.items()}
    # the ids that SeqIO does not count as tokens
    stats = Stats(
        {name: [id for id in (words.eos_id, words.pad_id) if id is not None] for name, words in vocabularies.items()}
    )
    sorter = DigestSorter(folder / f".{split}.order")
    info: dict[str, Any] = {}
    reported, last = 0, time.monotonic()
    report(0, "")
    for index in range(sources):
        for columns, records, features in _examples(task, split, index, sources):
            form = {"num_shards": count, "features": features, "seqio_version": seqio.__version__}
            if info and form != info:
                first = info["features"]
                name = next(name for name in {**first, **features} if first.get(name) != features.get(name))
                raise UserError(
                    f"The examples of {task.name}, split {split}, are not all of one form: {name} is "
                    f"{json.dumps(first.get(name))} in one and {json.dumps(features.get(name))} in another. SeqIO "
                    "keeps the form of one, drawn by chance, so that this cache cannot be made the same each time. To "
                    f"have it made by Beam all the same, type: {command}"
                )
            info = form
            stats.add(columns, len(records))
            sorter.add(records)
            if time.monotonic() - last >= _REPORT_SECONDS:
                report(stats.examples - reported, "")
                reported, last = stats.examples, time.monotonic()
    report(stats.examples - reported, f"writing {split}")
    prefix = seqio.get_cached_tfrecord_prefix(str(folder), split)
    deal(iter(sorter), [Path(f"{prefix}-{number:05}-of-{count:05}") for number in range(count)])
    paths = (seqio.get_cached_info_path(str(folder), split), seqio.get_cached_stats_path(str(folder), split))
    for path, value in zip(paths, (info, stats.to_json()), strict=True):
        Path(path).write_text(json.dumps(value, sort_keys=True, indent=2) + "\n", encoding="utf-8")


def _examples(
    task: seqio.Task, split: str, index: int, sources: int
) -> Iterator[tuple[dict[str, Column], list[bytes], dict[str, Any]]]:
    """Examples of one file of the source in batches: what is counted, the records, and the features of SeqIO's info
    file."""
    placeholder = next(
        i for i, step in enumerate(task.preprocessors) if isinstance(step, seqio.CacheDatasetPlaceholder)
    )
    if not local_format.applies(task, task.preprocessors[:placeholder], split):
        seed, shard = shard_seed(task.name, index), seqio.ShardInfo(index=index, num_shards=sources)
        dataset = task.source.get_dataset(split=split, shard_info=shard, shuffle=False, seed=seed)
        yield from _batches(task.preprocess_precache(dataset, seed=seed))
        return
    features = {local_format.FEATURE: _feature_info([None], tf.int32)}
    for count, columns in local_format.columns(task, Path(task.source.list_shards(split)[index])):
        yield columns, serialise(columns, count), features


def _batches(dataset: tf.data.Dataset) -> Iterator[tuple[dict[str, Column], list[bytes], dict[str, Any]]]:
    """The examples of a dataset in batches, as `_examples` gives them."""
    spec = dataset.element_spec
    if not _is_plain(spec):
        yield from map(_single_example, dataset.prefetch(tf.data.AUTOTUNE))
        return
    features = {name: _feature_info(value.shape.as_list(), value.dtype) for name, value in spec.items()}
    names = names_in_order(spec)
    for batch in dataset.ragged_batch(_BATCH).prefetch(_PREFETCH):
        columns = {name: _column(batch[name]) for name in names}
        for count, part in parts(columns):
            yield part, serialise(part, count), features


def _is_plain(spec: Any) -> bool:
    """True if the examples are numbers and texts, alone or in lists, as of most tasks."""
    if not isinstance(spec, dict) or not spec or not all(isinstance(value, tf.TensorSpec) for value in spec.values()):
        return False
    return all(value.shape.rank in (0, 1) and value.dtype in (tf.int32, tf.int64, tf.string) for value in spec.values())


def _column(batch: tf.Tensor | tf.RaggedTensor) -> Column:
    if isinstance(batch, tf.RaggedTensor):
        return Column(batch.flat_values.numpy(), batch.row_splits.numpy())
    values = batch.numpy()
    length = values.shape[1] if values.ndim == 2 else 1
    return Column(values.reshape(-1), np.arange(len(values) + 1) * length)


def _single_example(example: Mapping[str, Any]) -> tuple[dict[str, Column], list[bytes], dict[str, Any]]:
    columns = {}
    for name, value in example.items():
        if isinstance(value, tf.Tensor) and value.dtype in (tf.int32, tf.int64):
            values = value.numpy().reshape(-1)
            columns[name] = Column(values, np.array([0, len(values)]))
    features = {name: _feature_info(value.shape.as_list(), value.dtype) for name, value in example.items()}
    return columns, [seqio.dict_to_tfexample(example).SerializeToString(deterministic=True)], features


def _feature_info(shape: list[int | None], dtype: tf.DType) -> dict[str, Any]:
    """A feature in the form of SeqIO's info file: the first of its dimensions is left open."""
    return {"shape": [None, *shape[1:]] if shape else [], "dtype": dtype.name}
