"""Rows of batches as inputs and targets, against what SeqIO's converters were given."""

from __future__ import annotations

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5xpg.data.batch import ENC_DEC, LM, MASKED_LM, PREFIX_LM, BatchSpec, inputs_and_targets, validate, with_targets

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
    rows = list(CONVERTERS[name](pack=False)(dataset, lengths).as_numpy_iterator())
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
    inputs, targets = inputs_and_targets(
        {"decoder_target_tokens": tokens}, BatchSpec(2, {"targets": 6}, feature_converter=LM)
    )
    np.testing.assert_array_equal(np.concatenate([inputs, targets], axis=1), tokens)
    assert inputs.shape == (2, 3)


def test_masked_rows_are_whole() -> None:
    batch = {"encoder_input_tokens": np.ones((2, 4), np.int32), "encoder_target_tokens": np.zeros((2, 4), np.int32)}
    spec = BatchSpec(2, {"inputs": 4, "targets": 4}, feature_converter=MASKED_LM)
    inputs, targets = inputs_and_targets(batch, spec)
    assert inputs.all()
    assert not targets.any()
