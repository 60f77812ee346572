"""The inputs of a predictor: their lengths, and texts that it refuses."""

from typing import Any

from t5xpg.api import Model
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.predictor import Predictor
from t5xpg.experiment import config
from tests.refusals import refused


def test_inputs_for_a_delete_gate_are_as_long_as_in_training() -> None:
    gate = ["TASK_FEATURE_LENGTHS={'inputs': 100, 'targets': 16}", "encoder_decoder.T5Config.delete_gate_layer=1"]
    for overrides, lengths in ((gate[:1], [64, 128, 128]), (gate, [100, 100, 128])):
        model: Any = Model.__new__(Model)
        model.experiment, model.vocabulary = config.load("byt5_tiny", overrides).experiment, Vocabulary()
        predictor = Predictor(model.experiment, None, model.vocabulary)
        texts = ["a" * length for length in (3, 80, 110)]
        assert [predictor.encode([text]).shape[1] for text in texts] == lengths
        assert [model._tokens([text]).shape[1] for text in texts] == lengths


def test_a_language_model_has_nothing_to_continue_where_the_text_is_empty() -> None:
    overrides = ["TASK_FEATURE_LENGTHS={'targets': 16}", "spec.DatasetConfig.objective=None"]
    loaded = config.load("byt5_tiny", overrides, ["gin/architectures/decoder_only.gin"])
    predictor = Predictor(loaded.experiment, None, Vocabulary())
    assert predictor.encode(["a"]).any()
    with refused("empty"):
        predictor.encode(["a", ""])
