"""Caching of a task on one machine without Beam: the files of SeqIO's caching script, in much less time and memory.

The source of each split streams through the steps before the placeholder with the script's seeds, and the examples go
to the files in the order of their digests, as `beam` leaves them: both make the same bytes. Imports TensorFlow.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.data.cache import byte_examples
from t5xpg.data.cache.external_sort import DigestSorter, deal
from t5xpg.data.cache.record import COMPLETED

Report = Callable[[int, str], None]  # gets the number of examples since the last call, and a note on the work
MIN_SHARDS = 64  # of SeqIO's script
_REPORT_SECONDS = 0.2
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
    examples, tokens, most_tokens = 0, Counter[str](), Counter[str]()
    sorter = DigestSorter(folder / f".{split}.order")
    info: dict[str, Any] = {}
    reported, last = 0, time.monotonic()
    report(0, "")
    for index in range(sources):
        for counts, records, features in _examples(task, split, index, sources):
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
            examples += len(records)
            for name, numbers in counts.items():
                tokens[name] += sum(numbers)
                most_tokens[name] = max(most_tokens[name], *numbers)
            sorter.add(records)
            if time.monotonic() - last >= _REPORT_SECONDS:
                report(examples - reported, "")
                reported, last = examples, time.monotonic()
    report(examples - reported, f"writing {split}")
    prefix = seqio.get_cached_tfrecord_prefix(str(folder), split)
    deal(iter(sorter), [Path(f"{prefix}-{number:05}-of-{count:05}") for number in range(count)])
    paths = (seqio.get_cached_info_path(str(folder), split), seqio.get_cached_stats_path(str(folder), split))
    for path, value in zip(paths, (info, {"examples": examples, **stats_of(tokens, most_tokens)}), strict=True):
        Path(path).write_text(json.dumps(value, sort_keys=True, indent=2) + "\n", encoding="utf-8")


def stats_of(tokens: Mapping[str, int], most_tokens: Mapping[str, int]) -> dict[str, int]:
    """The tokens of all examples and of the longest one, by feature, under the keys of SeqIO's stats file. Raises
    ValueError, as SeqIO does, where two features have the same key."""
    sums = {f"{name}_tokens": count for name, count in tokens.items()}
    # SeqIO's own renaming: it also changes a feature that is called "tokens"
    most = {f"{name}_tokens".replace("tokens", "max_tokens"): count for name, count in most_tokens.items()}
    if shared := sums.keys() & most.keys():
        raise ValueError(f"two features of the task have the same name in SeqIO's stats: {', '.join(shared)}")
    return sums | most


def _examples(
    task: seqio.Task, split: str, index: int, sources: int
) -> Iterator[tuple[Mapping[str, Sequence[int]], list[bytes], dict[str, Any]]]:
    """Examples of one file of the source in batches: the numbers of their tokens by feature, the records, and the
    features of SeqIO's info file."""
    placeholder = next(
        i for i, step in enumerate(task.preprocessors) if isinstance(step, seqio.CacheDatasetPlaceholder)
    )
    if byte_examples.applies(task, task.preprocessors[:placeholder], split):
        features = {byte_examples.FEATURE: _feature_info([None], tf.int32)}
        for counts, records in byte_examples.batches(task, Path(task.source.list_shards(split)[index])):
            yield {byte_examples.FEATURE: counts}, records, features
        return
    vocabularies = {name: feature.vocabulary for name, feature in task.output_features.items()}
    # the ids that SeqIO does not count as tokens
    special_ids = {
        name: [id for id in (words.eos_id, words.pad_id) if id is not None] for name, words in vocabularies.items()
    }
    seed, shard = shard_seed(task.name, index), seqio.ShardInfo(index=index, num_shards=sources)
    dataset = task.source.get_dataset(split=split, shard_info=shard, shuffle=False, seed=seed)
    for example in task.preprocess_precache(dataset, seed=seed).prefetch(tf.data.AUTOTUNE):
        tokens = {
            name: [int(np.isin(value.numpy(), special_ids[name], invert=True).sum())]
            for name, value in example.items()
            if name in special_ids and isinstance(value, tf.Tensor) and value.dtype in (tf.int32, tf.int64)
        }
        features = {name: _feature_info(value.shape.as_list(), value.dtype) for name, value in example.items()}
        yield tokens, [seqio.dict_to_tfexample(example).SerializeToString(deterministic=True)], features


def _feature_info(shape: list[int | None], dtype: tf.DType) -> dict[str, Any]:
    """A feature in the form of SeqIO's info file: the first of its dimensions is left open."""
    return {"shape": [None, *shape[1:]] if shape else [], "dtype": dtype.name}
