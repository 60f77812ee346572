"""Batches of length buckets: what they hold, their position, and what excludes them."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import seqio

from t5xpg.data.batch import LM, PREFIX_LM, hash_batch, longest_array, validate
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream import length_fit
from t5xpg.data.stream.pipeline import without_autograph
from t5xpg.data.tasks import providers
from tests.data.stream.test_positions import hashes, opened, rows_of
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("sample_tasks")

LENGTHS = {"inputs": 240, "targets": 160}
BUCKETS = (70, 110, 150, 240)
ROWS = {70: 48, 110: 32, 150: 24, 240: 16}  # at most 16 x 240 tokens, in multiples of 8


def config(**values: Any) -> DatasetConfig:
    given: dict[str, Any] = {"mixture_or_task_name": "sample_plain", "task_feature_lengths": LENGTHS, "batch_size": 16}
    return DatasetConfig(**given | {"use_cached": False, "length_buckets": BUCKETS} | values)


def test_rows_of_buckets() -> None:
    found = config().buckets
    assert {length: bucket.batch_size for length, bucket in found.items()} == ROWS
    assert found[240].task_feature_lengths == LENGTHS
    assert found[150].task_feature_lengths == {"inputs": 150, "targets": 150}
    assert config(batch_size=3, length_buckets=(100, 240)).buckets[100].batch_size == 7
    assert DatasetConfig.from_json(json.loads(json.dumps(config().to_json()))) == config()


def test_an_epoch_has_every_example_once_in_the_first_bucket_that_holds_it() -> None:
    """Against plain SeqIO, in the order in which the buckets become full; what is left of each comes at the end."""
    settings = config(num_epochs=1, seed=3)
    options = {"use_cached": False, "shuffle": True, "num_epochs": 1, "seed": 3, "dataset_split": "train"}
    converter = seqio.EncDecFeatureConverter(pack=False)
    plain = without_autograph(lambda: seqio.get_dataset("sample_plain", LENGTHS, converter, **options))
    waiting: dict[int, list[Any]] = {length: [] for length in BUCKETS}
    expected = []
    for row in plain.as_numpy_iterator():
        used = max(int(np.flatnonzero(array)[-1]) + 1 for array in row.values())
        bucket = next(length for length in BUCKETS if used <= length)
        waiting[bucket].append(row)
        if len(waiting[bucket]) == settings.buckets[bucket].batch_size:
            expected.append((bucket, waiting.pop(bucket)))
            waiting[bucket] = []
    expected += [(length, waiting[length]) for length in BUCKETS if waiting[length]]
    stream = opened(settings)
    for bucket, rows in expected:
        batch = rows_of(stream)
        assert settings.of_batch(batch) == settings.buckets[bucket]
        validate(batch, settings.buckets[bucket].batch_spec())
        for name, array in batch.items():
            whole = np.stack([row[name] for row in rows])
            np.testing.assert_array_equal(array[: len(rows)], whole[:, : array.shape[1]], err_msg=name)
            assert not whole[:, array.shape[1] :].any()
            assert not array[len(rows) :].any()
    assert stream.next() is None
    assert sum(len(rows) for _, rows in expected) == 60
    assert len({bucket for bucket, _ in expected}) > 2


def test_a_position_between_half_full_buckets_leads_to_the_same_batches() -> None:
    settings = config(batch_size=4, seed=1, length_buckets=(100, 150, 240))
    stream = opened(settings)
    expected, positions = [], {}
    for place in range(40):
        if place in (0, 7, 31):
            positions[place] = stream.save()
        expected.append(rows_of(stream))
    assert {longest_array(batch) for batch in expected} == {100, 150, 240}
    digests = [hash_batch(batch) for batch in expected]
    assert len(set(digests)) == len(digests)
    other = opened(settings)
    for place in (31, 0, 7):
        other.restore(positions[place])
        assert hashes(other, 6) == digests[place : place + 6], place


def test_the_share_of_padding() -> None:
    settings = config()
    (fit,) = length_fit.measure(providers.find_provider(settings), settings)
    bucketed, whole = fit.padding
    task, options = seqio.get_mixture_or_task("sample_plain"), {"shuffle": False, "use_cached": False}
    plain = without_autograph(lambda: task.get_dataset(LENGTHS, "train", **options))
    used = [[len(row[name]) for name in LENGTHS] for row in plain.as_numpy_iterator()]
    assert whole == pytest.approx(1 - np.sum(used) / (len(used) * 400))
    padded = [next(length for length in BUCKETS if max(one) <= length) for one in used]
    assert bucketed == pytest.approx(1 - np.sum(used) / sum(length + min(length, 160) for length in padded))
    without = dataclasses.replace(settings, length_buckets=None)
    assert length_fit.measure(providers.find_provider(without), without)[0].padding is None


@pytest.mark.parametrize(
    ("values", "names"),
    [
        *(({"length_buckets": wrong}, "ascending") for wrong in ((70, 110), (110, 70, 240), (), (True, 240), 240)),
        ({"pack": True}, "PACK = True"),
        ({"num_virtual_shards": 2}, "NUM_VIRTUAL_SHARDS = 1|2"),
        ({"feature_converter": PREFIX_LM}, "PrefixLMFeatureConverter"),
    ],
)
def test_what_buckets_cannot_be(values: dict[str, Any], names: str) -> None:
    with refused("LENGTH_BUCKETS", *names.split("|")):
        config(**values)


def test_buckets_of_a_language_model() -> None:
    settings = config(task_feature_lengths={"targets": 160}, feature_converter=LM, length_buckets=(80, 160), seed=2)
    batch = rows_of(opened(settings))
    validate(batch, settings.of_batch(batch).batch_spec())
