"""The inputs of a predictor: their lengths, and texts that it refuses."""

from typing import Any

from t5xpg.api import Model
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.predictor import Predictor
from t5xpg.experiment import config
from tests.refusals import refused


def test_lengths_of_inputs_are_rounded_up() -> None:
    model: Any = Model.__new__(Model)
    model.experiment, model.vocabulary = config.load("byt5_tiny").experiment, Vocabulary()
    predictor = Predictor(model.experiment, None, model.vocabulary)
    for length, rounded in ((3, 64), (80, 128), (130, 192)):
        assert predictor.encode(["a" * length]).shape[1] == model._tokens(["a" * length]).shape[1] == rounded


def test_a_language_model_has_nothing_to_continue_where_the_text_is_empty() -> None:
    overrides = ["TASK_FEATURE_LENGTHS={'targets': 16}", "spec.DatasetConfig.objective=None"]
    loaded = config.load("byt5_tiny", overrides, ["gin/architectures/decoder_only.gin"])
    predictor = Predictor(loaded.experiment, None, Vocabulary())
    assert predictor.encode(["a"]).any()
    with refused("empty"):
        predictor.encode(["a", ""])
