"""Names, shapes, dtypes and values of batches; their rows as inputs and targets, against SeqIO's converters."""

import hashlib

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5xpg.data.batch import (
    ENC_DEC,
    LM,
    MASKED_LM,
    PREFIX_LM,
    BatchSpec,
    hash_batch,
    hash_of_parts,
    hash_parts,
    inputs_and_targets,
    validate,
    with_targets,
)
from t5xpg.data.stream.pipeline import without_autograph
from tests.refusals import assert_named


def test_every_fault_is_named() -> None:
    spec = BatchSpec(2, {"inputs": 4, "targets": 3}, packed=True, vocab_size=10)
    batch = {name: np.zeros(shape, dtype) for name, (shape, dtype) in spec.features().items()}
    validate(batch, spec)
    del batch["decoder_input_tokens"]
    batch["label"] = np.zeros(2)
    batch["encoder_input_tokens"] = np.zeros((2, 5), np.int32)
    batch["decoder_segment_ids"] = np.zeros((2, 3), np.float32)
    outside = {
        "decoder_target_tokens": 10,
        "decoder_loss_weights": 2,
        "decoder_positions": 3,
        "encoder_segment_ids": -1,
    }
    for name, value in outside.items():
        batch[name][1, 2] = value
    with pytest.raises(ValueError, match="not a batch") as caught:
        validate(batch, spec)
    shapes_and_ranges = ["[2, 5]", "[2, 4]", "float32", "0 to 9", "0 to 1", "0 to 2", "from -1 to 0"]
    assert_named(str(caught.value), ["decoder_input_tokens is missing", "label", *outside, *shapes_and_ranges])


def test_hash_depends_on_everything_but_order_and_layout() -> None:
    batch = {"b": np.arange(6, dtype=np.int32).reshape(2, 3), "a": np.ones(2, np.int32)}
    digest = hash_batch(batch)
    assert digest == hash_batch(dict(reversed(batch.items())))
    assert digest == hash_batch({**batch, "b": np.asfortranarray(batch["b"])})
    assert digest == hash_batch({**batch, "a": batch["a"].astype(">i4")})
    others = [
        {**batch, "a": np.zeros(2, np.int32)},
        {**batch, "a": np.ones(2, np.int64)},
        {**batch, "b": batch["b"].reshape(3, 2)},
        {"c": batch["b"], "a": batch["a"]},
    ]
    assert len({digest, *map(hash_batch, others)}) == 5
    assert digest == "0ee806104ecd2f4c11b72dfbe249ca98b2b0e409fb5ca9fba9160b59e365628f"


def test_the_hash_of_parts() -> None:
    batch = {"a": np.arange(12, dtype=np.int32).reshape(6, 2), "b": np.arange(6, dtype=np.int32).reshape(6, 1)}
    parts = [{name: array[rows] for name, array in batch.items()} for rows in (slice(0, 2), slice(2, 4), slice(4, 6))]
    assert hash_parts(batch, 3) == [hash_batch(part) for part in parts]
    assert hash_parts(batch, 1) == [hash_batch(batch)]
    expected = hashlib.sha256("\n".join(map(hash_batch, parts)).encode()).hexdigest()
    assert hash_batch(batch, 3) == hash_of_parts(hash_parts(batch, 3)) == expected
    assert len({hash_batch(batch, count) for count in (1, 2, 3, 6)}) == 4


S, T = 6, 5
EXAMPLES = [([7, 8, 9, 1], [5, 6, 1]), ([3, 1], [4, 4, 4, 4, 1]), ([11, 12, 13, 14, 15, 1], [2, 1]), ([8, 1], [1])]
CONVERTERS = {ENC_DEC: seqio.EncDecFeatureConverter, PREFIX_LM: seqio.PrefixLMFeatureConverter}


def padded(rows: list[list[int]], length: int) -> np.ndarray:
    return np.array([row[:length] + [0] * (length - len(row)) for row in rows], np.int32)


def converted(name: str, examples: list[tuple[list[int], list[int]]]) -> tuple[dict[str, np.ndarray], BatchSpec]:
    dataset = tf.data.Dataset.from_generator(
        lambda: ({"inputs": np.array(i, np.int32), "targets": np.array(t, np.int32)} for i, t in examples),
        output_signature={feature: tf.TensorSpec([None], tf.int32) for feature in ("inputs", "targets")},
    )
    lengths = {"inputs": S, "targets": T}
    features = without_autograph(lambda: CONVERTERS[name](pack=False)(dataset, lengths))
    rows = list(features.as_numpy_iterator())
    batch = {array: np.stack([row[array] for row in rows]) for array in rows[0]}
    return batch, BatchSpec(len(rows), lengths, feature_converter=name)


@pytest.mark.parametrize("name", [ENC_DEC, PREFIX_LM])
def test_they_are_what_the_converter_was_given(name: str) -> None:
    batch, spec = converted(name, EXAMPLES)
    inputs, targets = inputs_and_targets(batch, spec)
    np.testing.assert_array_equal(inputs, padded([example[0] for example in EXAMPLES], S))
    np.testing.assert_array_equal(targets, padded([example[1] for example in EXAMPLES], T))
    # other targets give the batch that the converter makes of them
    others = [[9, 9, 9, 1], [2, 1], [1], [6, 7, 8, 9, 10]]
    changed = with_targets(batch, padded(others, T), spec)
    validate(changed, spec)
    expected, _ = converted(name, [(inputs, other) for (inputs, _), other in zip(EXAMPLES, others, strict=True)])
    for array, values in expected.items():
        np.testing.assert_array_equal(changed[array], values, err_msg=array)


def test_rows_of_zeros_stay_zeros() -> None:
    batch, spec = converted(PREFIX_LM, EXAMPLES)
    empty = {name: np.zeros_like(array) for name, array in batch.items()}
    assert not any(array.any() for array in inputs_and_targets(empty, spec))
    assert not any(array.any() for array in with_targets(empty, np.zeros((4, T), np.int32), spec).values())


def test_half_of_a_text_stands_for_what_a_language_model_is_asked() -> None:
    tokens = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
    spec = BatchSpec(2, {"targets": 6}, feature_converter=LM)
    inputs, targets = inputs_and_targets({"decoder_target_tokens": tokens}, spec)
    np.testing.assert_array_equal(np.concatenate([inputs, targets], axis=1), tokens)
    assert inputs.shape == (2, 3)


def test_masked_rows_are_whole() -> None:
    batch = {"encoder_input_tokens": np.ones((2, 4), np.int32), "encoder_target_tokens": np.zeros((2, 4), np.int32)}
    spec = BatchSpec(2, {"inputs": 4, "targets": 4}, feature_converter=MASKED_LM)
    assert [array.mean() for array in inputs_and_targets(batch, spec)] == [1, 0]
