"""Caches that are made without Beam are those that SeqIO's script makes with it, byte for byte."""

import json
import random
from pathlib import Path

import pytest
import seqio
import tensorflow as tf

from t5xpg.data.cache import local
from t5xpg.data.cache.caching import cache_task
from t5xpg.data.text.export import export_dataset
from tests.refusals import refused

# Tasks of a user: over files, with random numbers, with features of all kinds, and of functions.
MODULE = """
import pathlib

import seqio
import tensorflow as tf

import t5xpg.tasks

HERE = pathlib.Path(__file__).parent
BYTES = seqio.Feature(seqio.ByteVocabulary(extra_ids=125))
WHOLE = seqio.Feature(seqio.PassThroughVocabulary(size=300))  # without an end or padding
CACHED = seqio.CacheDatasetPlaceholder()


@seqio.map_over_dataset(num_seeds=1)
def cut(line, seed):
    length = tf.random.stateless_uniform([], seed, maxval=tf.strings.length(line) + 1, dtype=tf.int32)
    return {"targets": tf.strings.substr(line, 0, length), "inputs": line, "length": length}


@seqio.map_over_dataset(num_seeds=2)
def drawn(example, seeds):
    numbers = [tf.random.stateless_uniform([3], seed, -(2**40), 2**40, tf.int64) for seed in seeds]
    return example | {"numbers": tf.concat(numbers, 0), "kept": numbers[0][0] > 0}


def some(dataset):
    dataset = dataset.filter(lambda example: example["kept"])
    return dataset.map(lambda example: {name: example[name] for name in example if name != "kept"})


def line_count(split, shuffle_files=False, seed=None):
    return tf.data.Dataset.range({"train": 70, "nothing": 0}[split])


def of_all_kinds(dataset):
    def example(number):
        count = tf.cast(number % 5, tf.int32)
        return {
            "inputs": tf.range(count) % 2,
            "targets": tf.reshape(tf.range(count * 2), [-1, 2]),
            "half": tf.cast(number, tf.float16) / 3,
            "double": tf.cast(number, tf.float64) / 7,
            "truth": number % 2 == 0,
            "small": tf.cast(number, tf.uint8),
            "ragged": tf.RaggedTensor.from_row_lengths(tf.range(count + 2), [2, count]),
            "text": tf.strings.as_string(number),
        }

    return dataset.map(example)


def plain(dataset):
    def example(number):
        long = tf.where(number == 3, 1_100_000, tf.cast(number, tf.int32) % 3)
        return {
            "inputs": number - 5,
            "targets": tf.range(long) % 290,
            "pair": tf.stack([number, -number]),
            "text": tf.strings.reduce_join(tf.fill([number % 4], "\\u00e4")),
            "words": tf.strings.as_string(tf.range(number % 3)),
        }

    return dataset.map(example)


def add(name, source, *steps, feature=BYTES):
    seqio.TaskRegistry.add(
        name, source=source, preprocessors=[*steps, CACHED], output_features={"inputs": feature, "targets": feature}
    )


if "local:files" not in seqio.TaskRegistry.names():
    lines = {split: sorted(map(str, HERE.glob(f"{split}-*.txt"))) for split in ("train", "validation")}
    files = seqio.TextLineDataSource(lines, num_input_examples={"train": 90, "validation": 0})
    add("local:files", files, cut, drawn, seqio.preprocessors.tokenize, some)
    function = seqio.FunctionDataSource(line_count, splits=["train", "nothing"])
    add("local_kinds", function, of_all_kinds)
    add("local_plain", function, plain, feature=WHOLE)
    tasks = ["local:files", "local_kinds", "local_plain", "mine_span_corruption"]
    # with all of its steps before the placeholder, those that draw spans too
    tasks.append(seqio.experimental.add_fully_cached_task("mine_span_corruption", {"inputs": 40, "targets": 20}).name)
    seqio.MixtureRegistry.add("local_all", tasks, default_rate=1.0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an export, text files, one of them empty, and a module of tasks."""
    folder = tmp_path_factory.mktemp("local cache")
    (folder / "local_tasks.py").write_text(MODULE)
    draw = random.Random(0)
    lines = [" ".join(draw.choices(["tree", "Öl", "", "water", "\t"], k=draw.randrange(9))) for _ in range(90)]
    for number in range(3):
        (folder / f"train-{number}.txt").write_text("".join(f"{line}\n" for line in lines[number * 10 :: 2]))
    (folder / "validation-0.txt").touch()
    text = folder / "text.txt"
    text.write_text("\n".join(f"{line} " * 20 + str(number) for number, line in enumerate(lines) if len(line) > 9))
    export_dataset("mine", data_dir=folder / "data", files={None: [text]}, log=lambda line: None)
    return folder


def cache(folder: Path, runner: str, place: str) -> list[str]:
    """What was said."""
    said: list[str] = []
    where = {"cache_dir": folder / place, "data_dir": folder / "data", "log": said.append}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.syspath_prepend(str(folder))
        cache_task("local_all", module_import=["local_tasks"], runner=runner, **where)
    return said


def contents(folder: Path) -> dict[str, bytes]:
    """All files but what the program remembers of its own, by their names."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".log"]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {name: content for name, content in files.items() if not name.startswith(".t5xpg")}


@pytest.mark.process
def test_the_cache_is_the_one_that_beam_makes(folder: Path) -> None:
    cache(folder, "local", "local")
    cache(folder, "FnApiRunner", "beam")
    ours, beam = contents(folder / "local"), contents(folder / "beam")
    assert ours.keys() == beam.keys()
    assert [name for name in ours if ours[name] != beam[name]] == []
    again = cache(folder, "local", "beam")
    assert again
    assert all(line.endswith("is cached already") for line in again)  # what Beam made is as good
    places = ["local/files", "local_kinds", "local_plain", "mine_span_corruption"]
    stats = {place: json.loads(ours[f"{place}/stats.train.json"]) for place in places}
    assert 0 < stats["local/files"]["examples"] < 120
    assert stats["local_kinds"]["examples"] == stats["local_plain"]["examples"] == 70
    assert json.loads(ours["mine_span_corruption_i40_t20/stats.train.json"])["inputs_max_tokens"] == 39
    assert stats["local_plain"]["targets_max_tokens"] == 1_100_000 - 3794  # zeros are padding
    assert json.loads(ours["local_kinds/stats.nothing.json"]) == {"examples": 0}
    assert sum("/train.tfrecord-" in name for name in ours) == 64 * (len(places) + 1)


def test_what_beam_would_write_by_chance_is_refused(tmp_path: Path) -> None:
    def examples(numbers: tf.data.Dataset) -> tf.data.Dataset:
        return numbers.map(lambda number: {"targets": tf.zeros([2, number], tf.int32), "number": number})

    source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: tf.data.Dataset.range(20), ["train"])
    features = {"targets": seqio.Feature(seqio.ByteVocabulary())}
    task = seqio.Task("local_small", source, features, [examples, seqio.CacheDatasetPlaceholder()])
    with refused("local_small, split train", "targets", "[null, 0]", "[null, 1]", "make cache TASK=local_small"):
        local.cache_task(task, tmp_path / "cache", "make cache TASK=local_small", lambda count, note: None)
