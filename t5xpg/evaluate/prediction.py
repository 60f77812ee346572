"""Predictions of an experiment's model, by its method of decoding; and whether the model can predict at all."""

from typing import Any

import jax

from t5xpg.base.errors import UserError
from t5xpg.data import batch
from t5xpg.data.batch import MASKED_LM
from t5xpg.data.vocab.sentinels import MASK
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.decoding import Decoded, DecodingConfig, decode, fill_masks


def predicts(experiment: Experiment) -> bool:
    """True if the experiment's model can predict."""
    converter = experiment.eval_dataset.converter
    if converter not in batch.BUILT_IN_CONVERTERS:
        return False
    return converter == MASKED_LM or experiment.model.for_decoding(converter) is not None


def check_predicts(experiment: Experiment) -> None:
    """Raise UserError if the experiment's model cannot predict."""
    if not predicts(experiment):
        raise UserError(
            f"A {type(experiment.model).__name__} of batches of {experiment.eval_dataset.converter} predicts no text: "
            "nobody has said what it is asked, or how it is decoded."
        )


def predict(
    experiment: Experiment, vocabulary: Vocabulary, params: Any, inputs: jax.Array, row_numbers: jax.Array
) -> Decoded:
    """The predictions for inputs [B, S] (`batch.inputs_and_targets`), by the experiment's method of decoding.

    Pure, to be jitted by its caller. A masked language model has a single method: it fills in the masks. row_numbers:
    int32 [B], see `decoding.sample`. Raises UserError for a model that predicts nothing.
    """
    check_predicts(experiment)
    converter = experiment.eval_dataset.converter
    decodable: Any = experiment.model.for_decoding(converter)
    if converter == MASKED_LM:
        return fill_masks(experiment.model, params, inputs, vocabulary.named_id(MASK))
    return decode(
        decodable,
        params,
        inputs,
        experiment.decoding,
        max_decode_length=experiment.eval_dataset.task_feature_lengths["targets"],
        row_numbers=row_numbers,
        eos_id=vocabulary.eos_id,
    )


def decoding_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings that determine predictions, as JSON: the method of decoding, the options that it reads, and the
    lengths that inputs and predictions are cut to."""
    lengths = experiment.eval_dataset.task_feature_lengths
    if experiment.eval_dataset.converter == MASKED_LM:
        return {"method": "fill_masks", "task_feature_lengths": dict(lengths)}
    settings = experiment.decoding.settings()
    settings["max_decode_length"] = experiment.decoding.max_decode_length or lengths.get("targets")
    return {**settings, "task_feature_lengths": dict(lengths)}


def decoding_words(experiment: Experiment) -> str:
    """The method of decoding and the options that are not its defaults: "greedy", "beam 4, alpha 1.0"."""
    if experiment.eval_dataset.converter == MASKED_LM:
        return "fill_masks"
    settings, usual = experiment.decoding.settings(), DecodingConfig(experiment.decoding.method).settings()
    words = [" ".join(str(settings.pop(name)) for name in ("method", "num_decodes") if name in settings)]
    return ", ".join(words + [f"{name} {value}" for name, value in settings.items() if value != usual.get(name)])
