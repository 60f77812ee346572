"""Positions anywhere in a stream: they lead to the same batches, do not grow, and are put back at once."""

import random
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from t5xpg.data.batch import hash_batch
from t5xpg.data.relocatable_paths import readable
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.pipeline import ShardedBatches, _shard_seed, with_relocatable_paths
from t5xpg.data.tasks import providers

pytestmark = pytest.mark.usefixtures("sample_tasks")

LENGTHS = {"inputs": 40, "targets": 24}
KINDS: dict[str, dict[str, Any]] = {
    "packed": {"mixture_or_task_name": "sample_cached", "pack": True},
    "mixture": {"mixture_or_task_name": "sample_mixture", "use_cached": False},
}


def config(kind: str, shards: int = 1) -> DatasetConfig:
    return DatasetConfig(
        task_feature_lengths=LENGTHS, batch_size=4, num_virtual_shards=shards, seed=shards, **KINDS[kind]
    )


def opened(config: DatasetConfig, shards: list[int] | None = None) -> ShardedBatches:
    owned = range(config.num_virtual_shards) if shards is None else shards
    return ShardedBatches(providers.find_provider(config), config, owned)


def rows_of(stream: ShardedBatches) -> dict[str, np.ndarray]:
    batch = stream.next()
    assert batch is not None
    return batch


def hashes(stream: ShardedBatches, count: int) -> list[str]:
    return [hash_batch(rows_of(stream)) for _ in range(count)]


def size(position: dict[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in position.values())


@pytest.mark.parametrize("kind", ["packed", "mixture"])
def test_any_position_leads_to_the_same_batches(kind: str) -> None:
    """Put back in any order, and again into parts that own one virtual shard each, which begin as the whole does."""
    draw = random.Random(kind)
    places = sorted(draw.sample(range(40), 2))
    stream = opened(config(kind, 2))
    expected, positions = [], {}
    for place in range(places[-1] + 3):
        if place in places:
            positions[place] = stream.save()
        expected.append(hash_batch(rows_of(stream)))
    draw.shuffle(places)
    parts = [opened(config(kind, 2), [shard]) for shard in range(2)]

    def check_parts(place: int) -> None:
        low, high = map(rows_of, parts)
        whole = {name: np.concatenate([low[name], high[name]]) for name in low}
        assert hash_batch(whole) == expected[place], place
        assert len(np.unique(whole["encoder_input_tokens"], axis=0)) == 4

    check_parts(0)
    for place in places:
        stream.restore(positions[place])
        assert hashes(stream, 3) == expected[place : place + 3], place
    for part in parts:
        part.restore(positions[place])
    check_parts(place)


@pytest.mark.parametrize("kind", ["packed", "mixture"])
def test_positions_do_not_grow(kind: str) -> None:
    """A few tens of documents lie in the buffers here: the size goes up and down with how long these are, and with how
    far reading is ahead. Once the buffers are full, many positions are compared with many of 2.5 times as many batches.
    """
    stream = opened(config(kind))
    hashes(stream, 60)

    def sizes_in_next_100() -> list[int]:
        return [size(stream.save()) for _ in range(10) if hashes(stream, 10)]

    early = sizes_in_next_100()
    hashes(stream, 190)
    assert statistics.median(sizes_in_next_100()) < 1.5 * max(early)


def test_a_position_is_put_back_without_reading_up_to_it(tmp_path: Path) -> None:
    """In a file of eight million characters, as a cache has it."""
    draw, path, count = np.random.default_rng(3), tmp_path / "train.tfrecord", 1000
    with tf.io.TFRecordWriter(str(path)) as writer:
        for line in (draw.bytes(8000) for _ in range(count)):
            writer.write(seqio.dict_to_tfexample({"inputs": line, "targets": line[:9]}).SerializeToString())
    text = dict.fromkeys(LENGTHS, tf.io.FixedLenFeature([], tf.string))
    features = dict.fromkeys(LENGTHS, seqio.Feature(seqio.ByteVocabulary(extra_ids=125)))
    steps = [seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim]
    source = seqio.TFExampleDataSource({"train": str(path)}, text)
    task = seqio.Task("large_file", source, features, steps, shuffle_buffer_size=4)
    stream = ShardedBatches(task, DatasetConfig("large_file", LENGTHS, batch_size=4), [0])
    hashes(stream, count // 4 - 30)
    position = stream.save()
    expected = hashes(stream, 2)

    def bytes_read() -> int:
        """Of files, by this process; other systems do not tell."""
        return int(Path("/proc/self/io").read_text().split()[1]) if sys.platform == "linux" else 0

    before = bytes_read()
    stream.restore(position)
    assert hashes(stream, 2) == expected
    # the position itself is read from a file; of the text, only what comes next
    assert bytes_read() - before - size(position) < path.stat().st_size / 3


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31 - 1), shards=st.integers(1, 64))
def test_seeds_of_virtual_shards(seed: int, shards: int) -> None:
    """Of one file: the first shard has the seed of the stream, every other one of its own, whatever their number."""
    options = {"seed": seed, "use_cached": False}
    one = DatasetConfig("sample_one", LENGTHS, batch_size=shards, num_virtual_shards=shards, **options)
    more = DatasetConfig("sample_one", LENGTHS, batch_size=99, num_virtual_shards=99, **options)
    provider = providers.find_provider(one)
    seeds, of_more = ([_shard_seed(provider, config, shard) for shard in range(shards)] for config in (one, more))
    assert seeds == of_more
    assert seeds[0] == seed
    assert len(set(seeds)) == shards
    assert all(0 <= number < 2**31 for number in seeds)


@pytest.mark.skipif(sys.platform != "linux", reason="there are no names for descriptors")
def test_a_position_survives_the_move_of_its_files(
    sample_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, cache, moved = sample_folder / "text", sample_folder / "cache", tmp_path / "moved"
    monkeypatch.setenv("T5XPG_DATA_DIR", str(text))
    monkeypatch.setenv("T5XPG_CACHE_DIR", str(cache))
    provider = with_relocatable_paths(providers.find_provider(config("mixture")))
    names = [name for task in providers.tasks_of(provider) for name in task.source.list_shards("train")]
    names += provider.tasks[0]._get_cached_source("train").list_shards("train")
    folders = sorted(name.rpartition("/")[0] for name in names)
    assert folders == 4 * ["/proc/self/fd/900"] + 3 * ["/proc/self/fd/901/sample_cached"]
    assert readable(f"cannot read {names[0]}") == f"cannot read {text.resolve() / 'train-0.txt'}"

    stream, other = opened(config("mixture")), opened(config("mixture"))
    stream.next()
    state = stream.save()
    expected = hashes(stream, 3)
    assert not any(str(sample_folder).encode() in array.tobytes() for array in state.values())
    shutil.move(text, moved)
    try:
        other.restore(state)
        assert hashes(other, 3) == expected
    finally:
        shutil.move(moved, text)
