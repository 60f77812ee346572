"""Virtual shards, padding, checks and agreement with plain SeqIO, in this process."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5xpg.data.batch import BatchSpec, validate
from t5xpg.data.cache import worker as cache_worker
from t5xpg.data.spec import DatasetConfig, SpanCorruption
from t5xpg.data.stream import pipeline, worker
from t5xpg.data.stream.pipeline import ShardedBatches, _shard_seed, without_autograph
from t5xpg.data.tasks import providers
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("sample_tasks")

LENGTHS = {"inputs": 40, "targets": 24}


def config(name: str = "sample_one", **values: Any) -> DatasetConfig:
    return DatasetConfig(
        **({"task_feature_lengths": LENGTHS, "batch_size": 8, "use_cached": False} | values), mixture_or_task_name=name
    )


def batches(settings: DatasetConfig, shards: Any = None, limit: int = 1000) -> list[dict[str, np.ndarray]]:
    shards = range(settings.num_virtual_shards) if shards is None else shards
    stream = ShardedBatches(providers.find_provider(settings), settings, list(shards))
    found: list[dict[str, np.ndarray]] = []
    while len(found) < limit and (batch := stream.next()) is not None:
        validate(batch, BatchSpec(len(stream.shards) * settings.rows_per_shard, LENGTHS, settings.pack, 384))
        found.append(batch)
    return found


def assert_same(left: list[dict[str, np.ndarray]], right: list[dict[str, np.ndarray]]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def seqio_rows(name: str, pack: bool = False, **options: Any) -> list[dict[str, np.ndarray]]:
    """What plain SeqIO gives of a validation split."""
    converter = seqio.EncDecFeatureConverter(pack=pack)
    plain = without_autograph(lambda: seqio.get_dataset(name, LENGTHS, converter, "validation", **options))
    return list(plain.as_numpy_iterator())


@pytest.mark.parametrize("name", ["sample_cached", "sample_mixture"])
def test_one_shard_gives_what_plain_seqio_gives(name: str) -> None:
    """Over one epoch: SeqIO keeps small data in memory, and with it the order of the files of the first epoch."""
    cached = name == "sample_cached"
    settings = config(name, use_cached=cached, seed=3, pack=cached, num_epochs=1, split="validation")
    expected = seqio_rows(name, cached, shuffle=True, use_cached=cached, num_epochs=1, seed=3, batch_size=8)
    assert len(expected) > 3
    assert_same(batches(settings, limit=len(expected)), expected)


def test_shards_of_a_finite_stream_end_together() -> None:
    """Each process must see as many batches as every other, or the last step would wait for ever."""
    settings = config("sample_plain", num_virtual_shards=2, num_epochs=1, split="validation", batch_size=2)
    whole = batches(settings)
    parts = [batches(settings, (shard,)) for shard in range(2)]
    own = [sum(int(batch["decoder_loss_weights"].any()) for batch in part) for part in parts]
    assert min(own) < max(own) == len(whole)
    pairs = zip(*parts, strict=True)
    assert_same(whole, [{name: np.concatenate([low[name], high[name]]) for name in low} for low, high in pairs])


def test_evaluation_covers_every_example_once_and_pads_with_zeros() -> None:
    settings = config(num_epochs=1, shuffle=False, split="validation", batch_size=8)
    found = batches(settings)
    rows = seqio_rows("sample_one", shuffle=False, seed=settings.seed)
    assert len(rows) % 8
    assert len(found) == -(-len(rows) // 8)
    for name in found[0]:
        stacked = np.concatenate([batch[name] for batch in found])
        np.testing.assert_array_equal(stacked[: len(rows)], [row[name] for row in rows])
        assert not stacked[len(rows) :].any()
    assert_same(found[:1], batches(dataclasses.replace(settings, max_batches=1)))


def test_shards_share_no_example_when_files_are_fewer() -> None:
    """Three files, four shards: examples are dealt out after the files were shuffled, which all must do alike."""
    settings = config("sample_three", num_virtual_shards=4, num_epochs=1, batch_size=4)
    provider = providers.find_provider(settings)
    assert {_shard_seed(provider, settings, shard) for shard in range(4)} == {settings.seed}
    texts = []
    for shard in range(4):
        dataset = provider.source.get_dataset("train", shuffle=True, seed=_shard_seed(provider, settings, shard))
        texts += [bytes(line) for line in dataset.shard(4, shard).as_numpy_iterator()]
    assert len(texts) == len(set(texts)) == 180


def numbers(split: str, shuffle_files: bool = False, seed: int | None = None) -> tf.data.Dataset:
    dataset = tf.data.Dataset.range(10, 50, output_type=tf.int32)
    return dataset.shuffle(40, seed) if shuffle_files else dataset


def task_of(name: str, kept: tf.Variable | bool = True, size: int = 100) -> seqio.Task:
    """Examples of one number each, in the order that its function gives; none while `kept` is False."""

    def examples(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.filter(lambda number: tf.identity(kept)).map(lambda number: dict.fromkeys(LENGTHS, number[None]))

    feature = seqio.Feature(seqio.PassThroughVocabulary(size), add_eos=False)
    source = seqio.FunctionDataSource(numbers, splits=["train"])
    return seqio.Task(name, source, dict.fromkeys(LENGTHS, feature), [examples], shuffle_buffer_size=1)


def test_shards_share_no_example_of_a_function_that_shuffles() -> None:
    settings = config("numbers", num_virtual_shards=2, num_epochs=1)
    stream = ShardedBatches(task_of("numbers"), settings, range(2))
    found = np.concatenate([batch["decoder_target_tokens"][:, 0] for batch in iter(stream.next, None)])
    assert sorted(found[found > 0]) == list(range(10, 50))


@pytest.mark.parametrize("rate", [1.0, 0.01])
def test_the_task_of_a_mixture_that_makes_no_example_is_named(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is first drawn after some batches."""
    kept = tf.Variable(False)
    mixture = seqio.Mixture("two", [(task_of("full"), 1.0), (task_of("empty", kept), rate)])
    stream = ShardedBatches(mixture, config("two"), [0])
    try:
        if rate < 1:
            monkeypatch.setattr(pipeline, "PATIENCE", 600.0)
            stream.next()
        monkeypatch.setattr(pipeline, "PATIENCE", 0.0)
        with refused("empty, split 'train'"):
            list(iter(stream.next, None))
    finally:
        kept.assign(True)  # or the thread would read for ever


def test_the_tasks_of_a_mixture_share_one_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    mixture = seqio.Mixture("two", [(task_of("one"), 1.0), (task_of("other", size=90), 1.0)])
    monkeypatch.setattr(worker, "_find_provider", lambda given: (config("two"), mixture))
    answers: Any = None
    with refused("inputs of one", "inputs of other", "vocabulary"):
        worker.Calls.describe(answers, config("two").to_json())


def test_the_position_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ShardedBatches(providers.find_provider(config()), config(), [0])

    def full(checkpoint: Any, file: str) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, f"{file}_temp/part-0; No space left on device [Op:SaveV2]")

    monkeypatch.setattr(tf.train.Checkpoint, "write", full)
    with refused("No space left on device", "Make room"):
        stream.save()


def test_a_shard_without_examples_is_an_error() -> None:
    settings = config("sample_plain", num_virtual_shards=100, batch_size=100, use_cached=True)
    with refused("shard 60 of 100", "sample_plain", "fewer virtual shards"):
        batches(settings, (60,), limit=1)


def test_objective_replaces_the_arguments_of_span_corruption() -> None:
    objective = SpanCorruption(noise_density=0.3, mean_noise_span_length=10.0)
    for name in ("sample_one", "sample_mixture"):
        changed = providers.find_provider(config(name, objective=objective))
        assert {providers.objective_of(task) for task in providers.tasks_of(changed)} == {objective}
        plain = providers.find_provider(config(name))
        assert {providers.objective_of(task) for task in providers.tasks_of(plain)} == {SpanCorruption(0.15, 5.0)}
    more, fewer = (batches(one, limit=1)[0] for one in (config(objective=objective), config()))
    assert more["decoder_loss_weights"].sum() > 1.5 * fewer["decoder_loss_weights"].sum()


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"name": "sample_onne"}, "sample_onne|Did you mean sample_one"),
        ({"name": "sample_one", "use_cached": True}, "make cache TASK=sample_one"),
        ({"name": "sample_absent"}, "sample_absent|'train'|not there"),
        ({"task_feature_lengths": {"targets": 20}}, "'targets'|{'inputs': …, 'targets': …}"),
        ({"task_feature_lengths": {"inputs": 256, "targets": 20}}, "{'inputs': 256, 'targets': 5"),
        ({"module_import": ("no_such_module.tasks",)}, "MODULE_IMPORT|no_such_module.tasks"),
    ],
)
def test_checks_before_reading(values: dict[str, Any], names: str) -> None:
    settings = config(**values)
    with refused(*names.split("|")):
        providers.import_modules(settings.module_import)
        providers.check(providers.find_provider(settings), settings)


def test_a_cache_of_a_split_without_examples_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in (("COMPLETED", ""), ("info.train.json", "{}"), ("stats.train.json", '{"examples": 0}')):
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(seqio.TaskRegistry.get("sample_one"), "_cache_dir", str(tmp_path))
    with refused("cache of sample_one", "'train'"):
        worker._find_provider(config(use_cached=True).to_json())


def test_the_number_of_examples_of_some_splits_alone(tmp_path: Path) -> None:
    splits, counts = ["train", "validation"], {"train": 40}
    source = seqio.FunctionDataSource(numbers, splits, counts)
    task = seqio.Task("counted", source, {}, [seqio.CacheDatasetPlaceholder()])
    assert [worker._examples(task, split) for split in splits] == [40, None]
    request = {"caches": str(tmp_path), "data_dir": "", "module_import": [], "only_missing": False, "force": True}
    assert cache_worker._plan_task(task, request, print)["examples"] is None
