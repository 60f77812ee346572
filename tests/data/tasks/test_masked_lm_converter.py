"""What models get of the objectives: the converter of masked language models, and SeqIO's own on the table's tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5xpg.data.tasks.feature_converters import MaskedLMFeatureConverter
from t5xpg.data.tasks.task_names import NAMED_BYTES

MASK_ID = NAMED_BYTES.named_id("[MASK]")
# Chosen are three tokens of the first example and two of the second: masked, replaced, kept.
EXAMPLES = [
    {"inputs": [8, 9, 5, 3, 4, 1], "targets": [8, 7, 6, 3, 4, 1], "chosen": [1, 2, 2, 2, 1, 1]},
    {"inputs": [8, 3, 9, 2, 1], "targets": [8, 3, 6, 2, 1], "chosen": [1, 1, 2, 2, 1]},
]


def converted(converter: Any, lengths: dict[str, int], examples: list[dict[str, list[int]]]) -> list[Any]:
    names = list(examples[0])
    dataset = tf.data.Dataset.from_generator(
        lambda: ({name: np.array(one[name], np.int32) for name in names} for one in examples),
        output_signature={name: tf.TensorSpec([None], tf.int32) for name in names},
    )
    return list(converter(dataset, lengths).as_numpy_iterator())


def test_every_chosen_position_counts() -> None:
    rows = converted(MaskedLMFeatureConverter(mask_id=9, pack=False), {"inputs": 7, "targets": 7}, EXAMPLES)
    assert [row["encoder_loss_weights"].tolist() for row in rows] == [[0, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0]]
    assert rows[0]["encoder_input_tokens"].tolist() == [8, 9, 5, 3, 4, 1, 0]
    assert rows[0]["encoder_target_tokens"].tolist() == [8, 7, 6, 3, 4, 1, 0]
    assert set(rows[0]) == {"encoder_input_tokens", "encoder_target_tokens", "encoder_loss_weights"}
    assert {value.dtype for value in rows[0].values()} == {np.dtype(np.int32)}
    stock = converted(seqio.EncoderFeatureConverter(mask_id=9, pack=False), {"inputs": 7, "targets": 7}, EXAMPLES)
    assert stock[0]["encoder_loss_weights"].tolist() == [0, 1, 0, 0, 0, 0, 0]


def test_packed_rows_keep_positions_and_weights_together() -> None:
    (row,) = converted(MaskedLMFeatureConverter(mask_id=9, pack=True), {"inputs": 13, "targets": 13}, EXAMPLES)
    assert {name: value.tolist() for name, value in row.items()} == {
        "encoder_input_tokens": [8, 9, 5, 3, 4, 1, 8, 3, 9, 2, 1, 0, 0],
        "encoder_target_tokens": [8, 7, 6, 3, 4, 1, 8, 3, 6, 2, 1, 0, 0],
        "encoder_segment_ids": [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0],
        "encoder_positions": [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0, 0],
        "encoder_loss_weights": [0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0],
    }


def test_examples_that_do_not_say_what_was_chosen_are_refused() -> None:
    plain = [{name: one[name] for name in ("inputs", "targets")} for one in EXAMPLES]
    with pytest.raises(ValueError, match=r"no feature 'chosen'.*masked_lm\. seqio\.EncoderFeatureConverter"):
        converted(MaskedLMFeatureConverter(mask_id=9, pack=False), {"inputs": 7, "targets": 7}, plain)
