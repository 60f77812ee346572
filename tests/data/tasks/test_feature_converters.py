"""The layouts of batches are those of SeqIO's feature converters; that of masked language models; one of your own."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5xpg.data import batch
from t5xpg.data.batch import ENC_DEC, LM, MASKED_LM, PREFIX_LM, BatchLayout, BatchSpec, add_layout, layout_of, validate
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.tasks import feature_converters
from t5xpg.data.tasks.feature_converters import add_feature_converter, feature_converter
from tests.refusals import refused

LENGTHS = {"inputs": 13, "targets": 13}
# `chosen`: three tokens of the first example and two of the second are masked (9), replaced or kept.
EXAMPLES = [
    {"inputs": [8, 9, 5, 3, 4, 1], "targets": [8, 7, 6, 3, 4, 1], "chosen": [1, 2, 2, 2, 1, 1]},
    {"inputs": [8, 3, 9, 2, 1], "targets": [8, 3, 6, 2, 1], "chosen": [1, 1, 2, 2, 1]},
]


def config(converter: str | None, pack: bool = False, **settings: Any) -> DatasetConfig:
    lengths = {feature: LENGTHS[feature] for feature in layout_of(converter or ENC_DEC).task_features}
    return DatasetConfig("a_task", lengths, batch_size=1, pack=pack, feature_converter=converter, **settings)


def converted(of: DatasetConfig, *examples: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """The first batch of one row; examples of a masked language model may have the feature `chosen`."""
    names = [*of.task_feature_lengths, *(["chosen"] if of.feature_converter == MASKED_LM else [])]
    rows = tf.data.Dataset.from_generator(
        lambda: ({name: np.asarray(one[name], np.int32) for name in names if name in one} for one in examples),
        output_signature={name: tf.TensorSpec([None], tf.int32) for name in names if name in examples[0]},
    )
    return next(feature_converter(of)(rows, of.task_feature_lengths).batch(1).as_numpy_iterator())


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("name", [ENC_DEC, LM, PREFIX_LM, MASKED_LM])
def test_a_layout_is_what_seqio_makes(name: str, pack: bool) -> None:
    of = config(name, pack)
    made = converted(of, *EXAMPLES)
    validate(made, of.batch_spec(vocab_size=10))
    lengths = feature_converter(of).get_model_feature_lengths(of.task_feature_lengths)
    assert layout_of(name).lengths(of.task_feature_lengths, pack) == dict(lengths)


def test_every_chosen_position_of_a_masked_language_model_counts() -> None:
    row = converted(config(MASKED_LM), EXAMPLES[0])
    assert {name: values[0, :7].tolist() for name, values in row.items()} == {
        "encoder_input_tokens": [8, 9, 5, 3, 4, 1, 0],
        "encoder_target_tokens": [8, 7, 6, 3, 4, 1, 0],
        "encoder_loss_weights": [0, 1, 1, 1, 0, 0, 0],  # SeqIO's own counts what is masked, 9, alone
    }
    row = converted(config(MASKED_LM, pack=True), *EXAMPLES)
    assert {name: values[0].tolist() for name, values in row.items()} == {
        "encoder_input_tokens": [8, 9, 5, 3, 4, 1, 8, 3, 9, 2, 1, 0, 0],
        "encoder_target_tokens": [8, 7, 6, 3, 4, 1, 8, 3, 6, 2, 1, 0, 0],
        "encoder_segment_ids": [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0],
        "encoder_positions": [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0, 0],
        "encoder_loss_weights": [0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0],
    }
    with pytest.raises(ValueError, match=r"no feature 'chosen'.*masked_lm\. seqio\.EncoderFeatureConverter"):
        converted(config(MASKED_LM), {name: EXAMPLES[0][name] for name in LENGTHS})


def test_the_loss_of_a_prefix_is_for_gin_to_decide() -> None:
    example = {"inputs": [7, 8, 5, 1], "targets": [3, 9, 1]}
    on_targets = converted(config(PREFIX_LM), example)["decoder_loss_weights"][0]
    on_all = converted(config(PREFIX_LM, loss_on_targets_only=False), example)["decoder_loss_weights"][0]
    assert on_targets.tolist() == [0, 0, 0, 0, 1, 1, 1] + [0] * 19
    assert on_all.tolist() == [1] * 7 + [0] * 19
    with refused("LOSS_ON_TARGETS_ONLY = False", PREFIX_LM):
        config(LM, loss_on_targets_only=False)


def test_lengths_have_to_be_those_of_the_features() -> None:
    with refused("'inputs', 'targets'", "{'targets': …}"):
        layout_of(LM).check_lengths(LENGTHS)
    with refused("equal"):
        layout_of(MASKED_LM).check_lengths({"inputs": 7, "targets": 8})


class _CountingConverter(seqio.LMFeatureConverter):
    pass


def test_one_of_your_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_LAYOUTS", dict(batch._LAYOUTS))
    monkeypatch.setattr(feature_converters, "_CONVERTERS", dict(feature_converters._CONVERTERS))
    with refused("Did you mean LMFeatureConverter"):
        dataclasses.replace(config(LM), feature_converter="LMFeaturesConverter")
    layout = BatchLayout(dict.fromkeys(layout_of(LM).lengths({"targets": 1}, packed=False), ("targets",)))
    add_layout("_CountingConverter", layout)
    with refused("already"):
        add_layout("_CountingConverter", layout_of(LM))
    with refused("add_feature_converter"):
        feature_converter(config("_CountingConverter"))
    add_feature_converter(_CountingConverter)
    made = converted(config("_CountingConverter"), {"targets": [3, 9, 1]})
    assert BatchSpec(1, {"targets": 13}, feature_converter="_CountingConverter").features().keys() == made.keys()
