"""Caches a task on one machine without Beam: what SeqIO's caching script writes, in much less time and memory.

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
from t5xpg.data.cache.external_sort import DigestOrder, deal
from t5xpg.data.cache.local_format import Column, Stats, names_in_order, parts, serialise
from t5xpg.data.cache.record import COMPLETED

Report = Callable[[int, str], None]  # gets the number of examples since the last call, and what is being done
MIN_SHARDS = 64  # of SeqIO's script
_REPORT_SECONDS = 0.2
_BATCH = 32  # examples taken from TensorFlow at a time: few, for they may be books
_AHEAD = 2  # batches that are read ahead
_INT64_MAX = 2**63 - 1


def cache_task(task: seqio.Task, folder: Path, command: str, report: Report) -> None:
    """Cache all splits of a task in the new `folder`. command: what caches it with Beam. Raises UserError where the
    cache would not be the same each time."""
    folder.mkdir(parents=True)
    for split in task.splits:
        _cache_split(task, split, folder, command, report)
    # what SeqIO's script leaves in it
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
        {name: [id for id in (one.eos_id, one.pad_id) if id is not None] for name, one in vocabularies.items()}
    )
    order = DigestOrder(folder / f".{split}.order")
    info: dict[str, Any] = {}
    reported, last = 0, time.monotonic()
    report(0, "")
    for index in range(sources):
        for columns, records, features in _examples(task, split, index, sources):
            found = {"num_shards": count, "features": features, "seqio_version": seqio.__version__}
            if info and found != info:
                one, other = info["features"], features
                name = next(name for name in {**one, **other} if one.get(name) != other.get(name))
                raise UserError(
                    f"The examples of {task.name}, split {split}, are not all of one form: {name} is "
                    f"{json.dumps(one.get(name))} in one and {json.dumps(other.get(name))} in another. SeqIO keeps the "
                    "form of one, drawn by chance, so that this cache cannot be made the same each time. To have it "
                    f"made by Beam all the same, type: {command}"
                )
            info = found
            stats.add(columns, len(records))
            order.add(records)
            if time.monotonic() - last >= _REPORT_SECONDS:
                report(stats.examples - reported, "")
                reported, last = stats.examples, time.monotonic()
    report(stats.examples - reported, f"writing {split}")
    prefix = seqio.get_cached_tfrecord_prefix(str(folder), split)
    deal(iter(order), [Path(f"{prefix}-{number:05}-of-{count:05}") for number in range(count)])
    paths = (seqio.get_cached_info_path(str(folder), split), seqio.get_cached_stats_path(str(folder), split))
    for path, value in zip(paths, (info, stats.to_json()), strict=True):
        Path(path).write_text(json.dumps(value, sort_keys=True, indent=2) + "\n", encoding="utf-8")


def _examples(
    task: seqio.Task, split: str, index: int, sources: int
) -> Iterator[tuple[dict[str, Column], list[bytes], dict[str, Any]]]:
    """Examples of one file of the source: what is counted, their records, and what SeqIO's info file says of them."""
    placeholder = next(i for i, one in enumerate(task.preprocessors) if isinstance(one, seqio.CacheDatasetPlaceholder))
    if not local_format.applies(task, task.preprocessors[:placeholder], split):
        seed, shard = shard_seed(task.name, index), seqio.ShardInfo(index=index, num_shards=sources)
        dataset = task.source.get_dataset(split=split, shard_info=shard, shuffle=False, seed=seed)
        yield from _batches(task.preprocess_precache(dataset, seed=seed))
        return
    features = {local_format.FEATURE: _described([None], tf.int32)}
    for count, columns in local_format.columns(task, Path(task.source.list_shards(split)[index])):
        yield columns, serialise(columns, count), features


def _batches(dataset: tf.data.Dataset) -> Iterator[tuple[dict[str, Column], list[bytes], dict[str, Any]]]:
    """The examples of a dataset in batches, as `_examples` gives them."""
    spec = dataset.element_spec
    if not _is_plain(spec):
        yield from map(_one, dataset.prefetch(tf.data.AUTOTUNE))
        return
    features = {name: _described(one.shape.as_list(), one.dtype) for name, one in spec.items()}
    names = names_in_order(spec)
    for batch in dataset.ragged_batch(_BATCH).prefetch(_AHEAD):
        columns = {name: _column(batch[name]) for name in names}
        for count, part in parts(columns):
            yield part, serialise(part, count), features


def _is_plain(spec: Any) -> bool:
    """Whether the examples are numbers and texts, alone or in lists, as most tasks make them."""
    if not isinstance(spec, dict) or not spec or not all(isinstance(one, tf.TensorSpec) for one in spec.values()):
        return False
    return all(one.shape.rank in (0, 1) and one.dtype in (tf.int32, tf.int64, tf.string) for one in spec.values())


def _column(batch: tf.Tensor | tf.RaggedTensor) -> Column:
    if isinstance(batch, tf.RaggedTensor):
        return Column(batch.flat_values.numpy(), batch.row_splits.numpy())
    values = batch.numpy()
    length = values.shape[1] if values.ndim == 2 else 1
    return Column(values.reshape(-1), np.arange(len(values) + 1) * length)


def _one(example: Mapping[str, Any]) -> tuple[dict[str, Column], list[bytes], dict[str, Any]]:
    columns = {}
    for name, value in example.items():
        if isinstance(value, tf.Tensor) and value.dtype in (tf.int32, tf.int64):
            values = value.numpy().reshape(-1)
            columns[name] = Column(values, np.array([0, len(values)]))
    features = {name: _described(value.shape.as_list(), value.dtype) for name, value in example.items()}
    return columns, [seqio.dict_to_tfexample(example).SerializeToString(deterministic=True)], features


def _described(shape: list[int | None], dtype: tf.DType) -> dict[str, Any]:
    """A feature as SeqIO's info file describes it: the first of its dimensions is left open."""
    return {"shape": [None, *shape[1:]] if shape else [], "dtype": dtype.name}
