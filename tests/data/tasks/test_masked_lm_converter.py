"""What models get of the objectives: the converter of masked language models, and SeqIO's own on the table's tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5xpg.data.tasks.feature_converters import MaskedLMFeatureConverter
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.tasks.task_names import NAMED_BYTES
from t5xpg.data.text.export import export_dataset

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


@pytest.fixture(scope="module")
def _tasks(tmp_path_factory: pytest.TempPathFactory, real_texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("table")
    (folder / "text.txt").write_text("\n".join(text.replace("\n", " ") for text in real_texts))
    export_dataset("real", data_dir=folder / "data", files={None: [folder / "text.txt"]}, log=lambda line: None)
    register_tasks(folder / "data")


def rows_of(task: str, converter: Any, lengths: dict[str, int], **task_lengths: int) -> list[dict[str, np.ndarray]]:
    def made() -> tf.data.Dataset:
        dataset = seqio.get_mixture_or_task(f"real_{task}").get_dataset(
            task_lengths or lengths, "train", shuffle=False, seed=3, num_epochs=1
        )
        return converter(dataset, lengths)

    return list(made().take(12).as_numpy_iterator())


@pytest.mark.usefixtures("_tasks")
@pytest.mark.parametrize("pack", [False, True])
def test_masked_language_model(pack: bool) -> None:
    lengths = {"inputs": 96, "targets": 96}
    rows = rows_of("mlm", MaskedLMFeatureConverter(mask_id=MASK_ID, pack=pack), lengths)
    for row in rows:
        inputs, targets = row["encoder_input_tokens"], row["encoder_target_tokens"]
        assert inputs[0] == targets[0] == NAMED_BYTES.named_id("[CLS]")
        changed = inputs != targets
        assert (row["encoder_loss_weights"][changed] == 1).all()
        assert row["encoder_loss_weights"].sum() > changed.sum() * 0.9
        assert not row["encoder_loss_weights"][targets == 0].any()
        assert "".join(chr(token - 3) for token in targets[1:20]).isprintable()


@pytest.mark.usefixtures("_tasks")
@pytest.mark.parametrize("pack", [False, True])
def test_language_models_with_the_converters_of_seqio(pack: bool) -> None:
    rows = rows_of("lm", seqio.LMFeatureConverter(pack=pack), {"targets": 96})
    for row in rows[:-1]:
        assert row["decoder_loss_weights"].all()
        assert row["decoder_input_tokens"][0] == 0
        np.testing.assert_array_equal(row["decoder_input_tokens"][1:], row["decoder_target_tokens"][:-1])
    lengths = {"inputs": 64, "targets": 64}
    for row in rows_of("prefix_lm", seqio.PrefixLMFeatureConverter(pack=pack), lengths):
        seen, weights = row["decoder_causal_attention"], row["decoder_loss_weights"]
        asked = weights == 1
        assert not (seen[1:] & weights[:-1] & weights[1:]).any()
        assert (row["decoder_target_tokens"][asked] != 0).all()
    for name in ("ul2", "ul2_x1", "span_corruption_bytes640"):
        row = rows_of(name, seqio.EncDecFeatureConverter(pack=pack), lengths)[0]
        assert row["decoder_loss_weights"].sum() > 5
