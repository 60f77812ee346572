"""SeqIO's kinds of sources, Hugging Face datasets and tasks that are cached to the end, read through the pipeline."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import seqio
import tensorflow as tf

from t5xpg.base.files import sha256_of_file
from t5xpg.check import data_checks
from t5xpg.data.batch import LM, hash_batch
from t5xpg.data.cache import worker
from t5xpg.data.cache.caching import cache_task
from t5xpg.data.cache.definition import definition_of
from t5xpg.data.cache.record import differences, read
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.pipeline import ShardedBatches
from t5xpg.data.tasks import providers
from tests.refusals import refused
from tests.workplace import make_hub

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("folder")]  # a process caches

LENGTHS = {"inputs": 40, "targets": 24}
SPLITS = ("train", "validation")

MODULE = """
import json
import pathlib

import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from t5xpg.data.tasks import steps
from t5xpg.data.tasks.sources import hugging_face_source
from t5xpg.data.objectives import SpanCorruption

HERE = pathlib.Path(__file__).parent
SPLITS = ("train", "validation")
OBJECTIVE = SpanCorruption(0.15, 5.0)
VOCABULARY = seqio.ByteVocabulary(extra_ids=125)


class SmallProse(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text()}))

    def _split_generators(self, manager):
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split):
        for number, text in enumerate(json.loads((HERE / "texts.json").read_text())[split]):
            yield number, {"text": text}


def lines(split):
    return (HERE / "lines" / f"{split}-0.txt").read_text().splitlines()


def from_python(split, shuffle_files=False, seed=None):
    # what Python gives cannot be put back to where it was
    rows = lambda: ({"text": line} for line in lines(split))
    return tf.data.Dataset.from_generator(rows, output_signature={"text": tf.TensorSpec([], tf.string)})


def from_operations(split, shuffle_files=False, seed=None):
    return tf.data.Dataset.from_tensor_slices({"text": lines(split)})


def without_seed(split, shuffle_files):
    return from_operations(split)


def to_text(dataset):
    return dataset.map(lambda line: {"text": line})


def add(name, source, *first, placeholder=seqio.CacheDatasetPlaceholder()):
    seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            *first,
            lambda dataset: seqio.preprocessors.rekey(dataset, {"targets": "text"}),
            seqio.preprocessors.tokenize,
            *([placeholder] if placeholder else []),
            *OBJECTIVE.steps(),
        ],
        output_features=steps.output_features(OBJECTIVE, VOCABULARY),
        shuffle_buffer_size=20,
    )


if "source_lines" not in seqio.TaskRegistry.names():
    source = seqio.TextLineDataSource({split: str(HERE / "lines" / f"{split}-*.txt") for split in SPLITS})
    add("source_lines", source, to_text)
    SmallProse(data_dir=str(HERE / "tfds")).download_and_prepare()
    add("source_tfds", seqio.TfdsDataSource("small_prose:1.0.0", tfds_data_dir=str(HERE / "tfds"), splits=SPLITS))
    add("source_operations", seqio.FunctionDataSource(from_operations, SPLITS))
    add("source_python", seqio.FunctionDataSource(from_python, SPLITS))
    add("source_python_plain", seqio.FunctionDataSource(from_python, SPLITS), placeholder=None)
    add("source_without_seed", seqio.FunctionDataSource(without_seed, SPLITS))
    for name, streaming in (("copied", False), ("streamed", True)):
        add(f"source_hub_{name}", hugging_face_source(str(HERE / "hub"), "prose", splits=SPLITS, streaming=streaming))
    add("source_required", source, to_text, placeholder=seqio.CacheDatasetPlaceholder(required=True))
    seqio.experimental.add_fully_cached_task("source_lines", {"inputs": 40, "targets": 24})
    cached = ["python", "hub_copied", "hub_streamed", "tfds", "required", "lines_i40_t24"]
    seqio.MixtureRegistry.add("source_cached", [f"source_{name}" for name in cached], default_rate=1.0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same texts, of one line each, in every format; the module of their tasks, imported; the caches of some."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "source_tasks.py").write_text(MODULE)
    hub = make_hub(folder / "hub", "prose", train=20, validation=21)
    tables = {split: pyarrow.parquet.read_table(hub / "prose" / split / "00000.parquet") for split in SPLITS}
    texts = {split: table["text"].to_pylist() for split, table in tables.items()}
    (folder / "texts.json").write_text(json.dumps(texts))
    (folder / "lines").mkdir()
    for split, rows in texts.items():
        for number in range(2):
            (folder / "lines" / f"{split}-{number}.txt").write_text("".join(f"{row}\n" for row in rows[number::2]))
    earlier = seqio.utils.get_global_cache_dirs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("HF_HOME", str(folder / "hugging face"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.syspath_prepend(str(folder))
        importlib.import_module("source_tasks")
        options: dict[str, Any] = {"module_import": ["source_tasks"], "log": lambda line: None}
        cache_task("source_cached", cache_dir=folder / "cache", data_dir=folder / "data", **options)
        seqio.set_global_cache_dirs([str(folder / "cache")])
        yield folder
        seqio.set_global_cache_dirs(earlier)


def config(name: str, **values: Any) -> DatasetConfig:
    settings = {"task_feature_lengths": LENGTHS, "batch_size": 4, "use_cached": False, "seed": 2} | values
    return DatasetConfig(f"source_{name}", **settings)  # type: ignore[arg-type]


def stream(settings: DatasetConfig) -> ShardedBatches:
    provider = providers.find_provider(settings)
    providers.check(provider, settings)
    return ShardedBatches(provider, settings, [0])


@pytest.mark.parametrize(
    ("name", "use_cached"),
    [*((name, False) for name in ("lines", "tfds", "operations")), ("hub_copied", True)],
)
def test_it_is_read_and_put_back(name: str, use_cached: bool) -> None:
    settings = config(name, use_cached=use_cached)
    first = stream(settings)
    for _ in range(3):
        assert first.next() is not None
    position = first.save()
    following = [hash_batch(first.next() or {}) for _ in range(4)]
    first.restore(position)
    assert [hash_batch(first.next() or {}) for _ in range(4)] == following


def texts_of(name: str, cached: bool = False) -> set[bytes]:
    """The tokens of the documents of a task, before the objective."""
    task = seqio.TaskRegistry.get(f"source_{name}")
    found: set[bytes] = set()
    for split in SPLITS:
        source = task._get_cached_source(split) if cached else task.source
        dataset = source.get_dataset(split=split, shuffle=False)
        made = dataset if cached else task.preprocess_precache(dataset, seed=0)
        found |= {example["targets"].astype(np.uint16).tobytes() for example in made.as_numpy_iterator()}
    return found


def test_every_source_gives_the_same_text() -> None:
    expected = texts_of("lines")
    assert len(expected) == 41
    assert texts_of("tfds") == expected
    for name in ("hub_copied", "hub_streamed", "tfds", "required"):
        assert texts_of(name, cached=True) == expected
    # that of functions is the half that their file holds
    assert texts_of("python", cached=True) < expected


def test_a_function_whose_place_cannot_be_saved_trains_from_a_cache_alone() -> None:
    for name, *names in (
        (
            "python",
            "make cache TASK=source_python MODULE_IMPORT=source_tasks",
            "USE_CACHED_TASKS = True",
            "from_python",
        ),
        ("python_plain", "seqio.CacheDatasetPlaceholder()"),
        ("hub_streamed", "read_split", "place in the data"),
        ("without_seed", "without_seed", "takes no seed"),
    ):
        with refused(f"source_{name}", *names):
            stream(config(name, module_import=("source_tasks",)))
    # what is read once, from its beginning to its end, need not be put back
    evaluated = stream(config("python", split="validation", num_epochs=1, shuffle=False))
    assert evaluated.next() is not None
    # nor is one without a seed cached
    request = {"caches": "", "data_dir": "", "module_import": [], "only_missing": False, "force": False}
    with refused("without_seed(split, shuffle_files, seed=None)"):
        worker._plan_task(seqio.TaskRegistry.get("source_without_seed"), request, print)


def test_what_is_cached_to_the_end_is_read_as_it_is() -> None:
    name = "lines_i40_t24"
    for one in (name, "required"):
        with refused(f"source_{one}", "USE_CACHED_TASKS = True"):
            stream(config(one))
    task = seqio.TaskRegistry.get(f"source_{name}")
    whole = list(task.get_dataset(LENGTHS, use_cached=True, shuffle=False).as_numpy_iterator())
    assert any((example["inputs"] == 383).any() for example in whole)  # spans, drawn once and for all
    once = stream(config(name, use_cached=True, num_epochs=1, shuffle=False))
    rows = sum(int((batch["encoder_input_tokens"] != 0).any(1).sum()) for batch in iter(once.next, None))
    assert rows == len(whole)


def test_a_cache_of_all_steps_is_told_from_others_by_each_of_them(folder: Path) -> None:
    """By the lengths and by the numbers of the objective, which stand in what SeqIO wraps."""
    task = seqio.TaskRegistry.get("source_lines_i40_t24")
    definition = definition_of(task, sha256_of_file, ["source_tasks"])
    record = read(folder / "cache" / "source_lines_i40_t24")
    assert record is not None
    assert record.definition == definition
    functions = [step["wraps"][0]["function"] for step in definition["preprocessors"]]
    assert functions[2:4] == ["seqio.preprocessors.tokenize", "t5xpg.data.objectives.span_corruption.span_corruption"]
    assert definition["preprocessors"][3]["sequence_length"] == LENGTHS
    original = seqio.TaskRegistry.get("source_lines")
    changed = providers.with_objective(original, type(providers.objective_of(original))(0.3, 5.0))  # type: ignore[misc]
    seqio.TaskRegistry.add_provider("source_other", changed)
    other = seqio.experimental.add_fully_cached_task("source_other", LENGTHS)
    found = differences(record, definition_of(other, sha256_of_file), record.package)
    assert any("noise_density" in phrase and "0.15, now 0.3" in phrase for phrase in found), found
    for name in ("source_other", other.name):
        seqio.TaskRegistry.remove(name)


def test_a_source_without_splits_is_named() -> None:
    """What SeqIO has of a data set that TensorFlow Datasets cannot get."""
    source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: tf.data.Dataset.range(1), splits=())
    task = seqio.Task("nowhere", source, {"targets": seqio.Feature(seqio.ByteVocabulary())})
    with refused("nowhere", "make cache TASK=nowhere"):
        providers.check(task, DatasetConfig("nowhere", {"targets": 8}, feature_converter=LM))


def test_a_source_of_python_is_described_before_it_is_cached() -> None:
    def rows(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(lambda: [{"targets": "one"}], output_types={"targets": tf.string})

    features = {"targets": seqio.Feature(seqio.ByteVocabulary())}
    task = seqio.Task("rows", seqio.FunctionDataSource(rows, ["train"]), features, [seqio.CacheDatasetPlaceholder()])
    service = Mock(describe=lambda dataset: providers.check(task, dataset))
    data_checks.describe(service, DatasetConfig("rows", {"targets": 8}, feature_converter=LM))
