"""Caches that are compared with their source: those of others, and those of other versions."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import seqio
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.data.cache import spot_check
from t5xpg.data.cache.spot_check import compare

NAME = "sample_of_cache"


def to_targets(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(lambda line: {"targets": line, "length": tf.strings.length(line)})


@pytest.fixture
def task(tmp_path: Path) -> Iterator[seqio.Task]:
    """A task of three files, with a step that draws random numbers as SeqIO hands them out."""
    for number in range(3):
        lines = "".join(f"line {line} of file {number}\n" for line in range(20))
        (tmp_path / f"train-{number}.txt").write_text(lines)
    feature = seqio.Feature(seqio.ByteVocabulary())

    @seqio.map_over_dataset(num_seeds=1)
    def drawn(example: dict[str, tf.Tensor], seed: tf.Tensor) -> dict[str, tf.Tensor]:
        return example | {"drawn": tf.random.stateless_uniform([], seed, maxval=1 << 30, dtype=tf.int32)}

    made = seqio.TaskRegistry.add(
        NAME,
        source=seqio.TextLineDataSource({"train": str(tmp_path / "train-*.txt")}),
        preprocessors=[to_targets, seqio.preprocessors.tokenize, drawn, seqio.CacheDatasetPlaceholder()],
        output_features={"inputs": feature, "targets": feature},
    )
    yield made
    seqio.TaskRegistry.remove(NAME)


def write_cache(task: seqio.Task, folder: Path, change: Callable[[list[bytes]], list[bytes]] = lambda r: r) -> Path:
    """A cache as SeqIO's script writes it, in two files, its records in another order."""
    from seqio import beam_utils

    folder.mkdir()
    preprocess = beam_utils.PreprocessTask(task, "train", add_provenance=True)
    preprocess._increment_counter = lambda name: None
    examples = [example for shard in preprocess.shards for example in preprocess._emit_examples(shard)]
    records = change([seqio.dict_to_tfexample(example).SerializeToString() for example in reversed(examples)])
    for number in range(2):
        with tf.io.TFRecordWriter(str(folder / f"train.tfrecord-0000{number}-of-00002")) as writer:
            for record in records[number::2]:
                writer.write(record)
    (folder / "info.train.json").write_text(json.dumps({"num_shards": 2}))
    (folder / "stats.train.json").write_text(json.dumps({"examples": len(records)}))
    (folder / "COMPLETED").touch()
    return folder


def with_other_text(records: list[bytes]) -> list[bytes]:
    """The last record, the first one of the source, with one token changed."""
    example = tf.train.Example.FromString(records[-1])
    example.features.feature["targets"].int64_list.value[3] += 1
    return [*records[:-1], example.SerializeToString()]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_other_text, r"of 33 documents of the split train .*, 1 are not in it, such as targets"),
        (lambda records: records[:-1], r"1 are not in it, such as targets = 111 108 113 104 35 51 35 114 …"),
    ],
)
def test_refuses_what_is_another(task: seqio.Task, tmp_path: Path, change: Any, said: str) -> None:
    folder = write_cache(task, tmp_path / "cache", change)
    with pytest.raises(UserError, match=f"holds other examples than {NAME} makes now: .*{said}.* type: make it$"):
        compare(task, folder, "make it")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: None, r"has 1 files of the split train, not 2"),
        (lambda content: b"", r"stats.train.json says 60 examples, its files hold 30"),
        (lambda content: content[:-9], r"train.tfrecord-00000-of-00002"),
        (lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:], r"train.tfrecord-00000-of-00002"),
    ],
    ids=["gone", "cut between records", "cut off", "flipped"],
)
def test_names_what_is_damaged(task: seqio.Task, tmp_path: Path, damage: Any, said: str) -> None:
    folder = write_cache(task, tmp_path / "cache")
    path = folder / "train.tfrecord-00000-of-00002"
    if (changed := damage(path.read_bytes())) is None:
        path.unlink()
    else:
        path.write_bytes(changed)
    with pytest.raises(UserError, match=f"{said}.* type: make it$"):
        compare(task, folder, "make it")


def test_finds_what_is_the_same(task: seqio.Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_cache(task, tmp_path / "cache")
    # eleven from each of three files
    said = "compared 33 documents of train, made again from the source: all as in the cache"
    assert compare(task, folder, "make it") == said
    # a large one is read in part
    monkeypatch.setattr(spot_check, "_READ_BYTES", sum(path.stat().st_size for path in folder.glob("train*")) // 3)
    assert "60 documents of train with 0 MiB of it" in compare(task, folder, "make it")
    other = write_cache(task, tmp_path / "other", lambda records: [r.replace(b"targets", b"inputsx") for r in records])
    with pytest.raises(UserError, match=r"of 60 documents .* 60 are not in it"):
        compare(task, other, "make it")
