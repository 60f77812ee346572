"""The layouts of batches are those of SeqIO's feature converters; one of your own can be added."""

from __future__ import annotations

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.data import batch
from t5xpg.data.batch import ENC_DEC, LM, MASKED_LM, PREFIX_LM, BatchLayout, BatchSpec, add_layout, layout_of, validate
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.tasks import feature_converters
from t5xpg.data.tasks.feature_converters import add_feature_converter, feature_converter

LENGTHS = {"inputs": 7, "targets": 8}


def config(converter: str | None, pack: bool = False, **settings: object) -> DatasetConfig:
    lengths = {feature: LENGTHS[feature] for feature in layout_of(converter or ENC_DEC).task_features}
    return DatasetConfig("a_task", lengths, batch_size=1, pack=pack, feature_converter=converter, **settings)  # type: ignore[arg-type]


def converted(of: DatasetConfig, *examples: dict[str, list[int]]) -> dict[str, np.ndarray]:
    def each() -> object:
        for example in examples:
            yield {name: np.asarray(example[name], np.int32) for name in of.task_feature_lengths}

    signature = dict.fromkeys(of.task_feature_lengths, tf.TensorSpec([None], tf.int32))
    rows = feature_converter(of)(
        tf.data.Dataset.from_generator(each, output_signature=signature), of.task_feature_lengths
    )
    return next(rows.batch(1).as_numpy_iterator())


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("name", [ENC_DEC, LM, PREFIX_LM])
def test_a_layout_is_what_seqio_makes(name, pack):
    of = config(name, pack)
    made = converted(of, {"inputs": [7, 8, 5, 1], "targets": [3, 9, 1]}, {"inputs": [8, 1], "targets": [4, 1]})
    validate(made, of.batch_spec(vocab_size=10))
    lengths = feature_converter(of).get_model_feature_lengths(of.task_feature_lengths)
    assert layout_of(name).lengths(of.task_feature_lengths, pack) == dict(lengths)


@pytest.mark.parametrize("pack", [False, True])
def test_the_layout_of_a_masked_language_model(pack):
    lengths = {"inputs": 7, "targets": 7}
    of = DatasetConfig("a_task", lengths, batch_size=1, pack=pack, feature_converter=MASKED_LM)
    assert layout_of(MASKED_LM).lengths(lengths, pack) == dict(feature_converter(of).get_model_feature_lengths(lengths))


def test_the_loss_of_a_prefix_is_for_gin_to_decide():
    example = {"inputs": [7, 8, 5, 1], "targets": [3, 9, 1]}
    on_targets = converted(config(PREFIX_LM), example)["decoder_loss_weights"][0]
    on_all = converted(config(PREFIX_LM, loss_on_targets_only=False), example)["decoder_loss_weights"][0]
    assert on_targets.tolist() == [0, 0, 0, 0, 1, 1, 1] + [0] * 8
    assert on_all.tolist() == [1] * 7 + [0] * 8
    with pytest.raises(UserError, match="LOSS_ON_TARGETS_ONLY = False is for PrefixLMFeatureConverter"):
        config(LM, loss_on_targets_only=False)


def test_lengths_have_to_be_those_of_the_features():
    with pytest.raises(UserError, match=r"gives lengths of 'inputs', 'targets': expected \{'targets': …\}"):
        layout_of(LM).check_lengths(LENGTHS)
    with pytest.raises(UserError, match="have to be equal"):
        layout_of(batch.MASKED_LM).check_lengths(LENGTHS)
    layout_of(batch.MASKED_LM).check_lengths({"inputs": 8, "targets": 8})


def test_a_name_that_is_not_known():
    with pytest.raises(UserError, match="Did you mean LMFeatureConverter"):
        DatasetConfig("a_task", {"targets": 8}, feature_converter="LMFeaturesConverter")


class _CountingConverter(seqio.LMFeatureConverter):
    pass


def test_one_of_your_own(monkeypatch):
    monkeypatch.setattr(batch, "_LAYOUTS", dict(batch._LAYOUTS))
    monkeypatch.setattr(feature_converters, "_CONVERTERS", dict(feature_converters._CONVERTERS))
    with pytest.raises(UserError, match="no feature converter named"):
        config("_CountingConverter")
    layout = BatchLayout(dict.fromkeys(layout_of(LM).lengths({"targets": 1}, packed=False), ("targets",)))
    add_layout("_CountingConverter", layout)
    add_layout("_CountingConverter", layout)
    with pytest.raises(UserError, match="already"):
        add_layout("_CountingConverter", layout_of(LM))
    with pytest.raises(UserError, match="add_feature_converter"):
        feature_converter(config("_CountingConverter"))
    add_feature_converter(_CountingConverter)
    made = converted(config("_CountingConverter"), {"targets": [3, 9, 1]})
    assert BatchSpec(1, {"targets": 8}, feature_converter="_CountingConverter").features().keys() == made.keys()
