"""How an experiment predicts: what its model is, what it is asked, and the method of decoding."""

from __future__ import annotations

from typing import Any

import jax

from t5xpg import batch_rows
from t5xpg.batch import MASKED_LM
from t5xpg.decoding import Decoded, decode, fill_masks
from t5xpg.errors import UserError
from t5xpg.experiment import Experiment
from t5xpg.named_tokens import MASK
from t5xpg.vocabularies import Vocabulary


def predicts(experiment: Experiment) -> bool:
    """Whether anything can be predicted with the experiment's model."""
    converter = experiment.eval_dataset.converter
    if converter not in batch_rows.KNOWN:
        return False
    return converter == MASKED_LM or experiment.model.for_decoding(converter) is not None


def check_predicts(experiment: Experiment) -> None:
    """Raise UserError where nothing can be."""
    if not predicts(experiment):
        raise UserError(
            f"A {type(experiment.model).__name__} of batches of {experiment.eval_dataset.converter} predicts no text: "
            "nobody has said what it is asked, or how it is decoded."
        )


def predict(
    experiment: Experiment, vocabulary: Vocabulary, params: Any, inputs: jax.Array, row_numbers: jax.Array
) -> Decoded:
    """What the model says to inputs [B, S] (`batch_rows.inputs_and_targets`), by the experiment's method of decoding.

    Pure, to be jitted by its caller. A masked language model has one way: it fills in the masks. row_numbers: int32
    [B], see `decoding.sample`. Raises UserError where it says nothing.
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
        pad_id=vocabulary.pad_id,
    )
