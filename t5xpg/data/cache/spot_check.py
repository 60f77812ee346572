"""A check that a cache made by other library versions, or by SeqIO's own script, holds the examples that its task makes
now: some documents of the source are preprocessed again and looked up in the cache. Imports TensorFlow and Beam inside
its functions.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError, first_line
from t5xpg.base.files import json_object_if_any

_DOCUMENTS = 32  # of a split
_SHARDS = 4  # of the source that they are taken from
_READ_BYTES = 256 << 20  # of a split in the cache
# Of a larger split, only a part is read. So many documents are made again that this many are expected in that part; the
# probability that it holds none is e^-24.
_EXPECTED = 24
_MOST_DOCUMENTS = 20_000
_SHOWN = 60  # characters of a text in a message


def compare(task: Any, folder: Path, command: str) -> str:
    """Make documents of each split again and look for them in the cache in `folder`; returns a phrase on what was
    compared. Raises UserError if one is missing, or the cache is damaged. command: makes the cache again."""
    remedy = f"To make the cache again, type: {command}"
    compared = []
    for split in sorted(task.splits):
        shards = _shards(folder, split, remedy)
        examples = json_object_if_any(folder / f"stats.{split}.json").get("examples")
        size = sum(path.stat().st_size for path in shards)
        is_whole = size <= _READ_BYTES
        count = _DOCUMENTS if is_whole else min(_MOST_DOCUMENTS, math.ceil(_EXPECTED * size / _READ_BYTES))
        expected = {frozenset(example.items()): example for example in _remade_examples(task, split, count)}
        num_in_cache = 0
        missing = dict(expected)
        names = {name for example in expected.values() for name in example}
        for record in _records(shards, None if is_whole else _READ_BYTES, remedy):
            num_in_cache += 1
            missing.pop(frozenset(item for item in record.items() if item[0] in names), None)
        if is_whole and examples is not None and num_in_cache != examples:
            raise UserError(
                f"The cache of {task.name} in {folder} is damaged: stats.{split}.json says {examples:,} examples, its "
                f"files hold {num_in_cache:,}. {remedy}"
            )
        if expected and (missing if is_whole else len(missing) == len(expected)):
            raise UserError(
                f"The cache in {folder} holds other examples than {task.name} makes now: of {len(expected)} documents "
                f"of the split {split} that were made again from the source, {len(missing)} are not in it, such as "
                f"{_excerpt(next(iter(missing.values())))}. {remedy}"
            )
        part = "" if is_whole else f" with {_READ_BYTES >> 20} MiB of it"
        compared.append(f"{len(expected)} documents of {split}{part}")
    return f"compared {', '.join(compared)}, made again from the source: all as in the cache"


def _shards(folder: Path, split: str, remedy: str) -> list[Path]:
    shards = sorted(folder.glob(f"{split}.tfrecord-*-of-*"))
    expected = json_object_if_any(folder / f"info.{split}.json").get("num_shards")
    if not shards or (expected is not None and len(shards) != expected):
        expectation = "" if expected is None else f", not {expected}"
        raise UserError(f"The cache in {folder} has {len(shards)} files of the split {split}{expectation}. {remedy}")
    return shards


def _remade_examples(task: Any, split: str, count: int) -> Iterator[dict[str, Any]]:
    """Examples as SeqIO's caching script makes them, its seeds included, from the beginning of some of the shards."""
    import seqio
    import tensorflow as tf
    from seqio import beam_utils

    preprocess = beam_utils.PreprocessTask(task, split)
    preprocess._increment_counter = lambda name: None
    chosen = preprocess.shards[:: max(1, len(preprocess.shards) // _SHARDS)]
    for shard in chosen:
        for example in itertools.islice(preprocess._emit_examples(shard), math.ceil(count / len(chosen))):
            yield _features(tf.train.Example.FromString(seqio.dict_to_tfexample(example).SerializeToString()))


def _records(shards: Sequence[Path], limit: int | None, remedy: str) -> Iterator[dict[str, Any]]:
    import tensorflow as tf

    read = 0
    for path in shards:
        try:
            for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
                read += len(record)
                if limit is not None and read > limit:
                    return
                yield _features(tf.train.Example.FromString(record))
        except (tf.errors.OpError, ValueError) as error:  # a record's checksum, or what it holds
            raise UserError(f"The cache file {path} is damaged ({first_line(error)}). {remedy}") from error


def _features(example: Any) -> dict[str, Any]:
    features = example.features.feature.items()
    task_features = {name: feature for name, feature in features if not name.startswith("provenance/")}
    return {name: feature.SerializeToString(deterministic=True) for name, feature in task_features.items()}


def _excerpt(example: dict[str, Any]) -> str:
    import tensorflow as tf

    name = max(sorted(example), key=lambda name: len(example[name]))
    feature = tf.train.Feature.FromString(example[name])
    values = list(getattr(feature, feature.WhichOneof("kind") or "int64_list").value)
    if values and isinstance(values[0], bytes):
        return f"{name} = {values[0].decode('utf-8', errors='replace')[:_SHOWN]!r}"
    return f"{name} = {' '.join(str(value) for value in values[:8])}{' …' if len(values) > 8 else ''}"
