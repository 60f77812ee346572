"""The decoder's attention over the encoder while it predicts, for some examples."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5xpg.base.markdown import one_line
from t5xpg.data.batch import ENC_DEC, with_targets
from t5xpg.data.spec import unpacked
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.experiment.experiment import Experiment

NUM_EXAMPLES = 3
_LONGEST = 48  # tokens: more cannot be read in one picture
_ASCII = 128
_WHOLE = 100  # weights are kept in hundredths


def of_examples(
    experiment: Experiment, params: Any, vocabulary: Vocabulary, inputs: np.ndarray, predictions: np.ndarray
) -> list[dict[str, Any]]:
    """{"inputs": [S pieces], "outputs": [T pieces], "weights": [T][S]} of the first examples that are short enough.

    inputs int32 [B, S], predictions int32 [B, T], both padded with 0. weights: the attention of each predicted token,
    the mean over layers and heads, in hundredths. Empty for a model that is no encoder-decoder of T5's kind.
    """
    if experiment.eval_dataset.converter != ENC_DEC or getattr(experiment.model, "source_attention", None) is None:
        return []
    input_lengths, output_lengths = ((tokens != 0).sum(axis=1) for tokens in (inputs, predictions))
    is_short = (input_lengths <= _LONGEST) & (output_lengths <= _LONGEST) & (output_lengths > 0)
    rows = np.flatnonzero(is_short)[:NUM_EXAMPLES]
    if not len(rows):
        return []
    spec = unpacked(experiment.eval_dataset).batch_spec()
    batch = with_targets({"encoder_input_tokens": inputs[rows]}, predictions[rows], spec)
    model: Any = experiment.model
    mean = jax.jit(lambda params, batch: jnp.mean(model.source_attention(params, batch), axis=(1, 2)))
    weights = np.asarray(mean(params, batch))
    maps = []
    for row, weight in zip(rows, weights, strict=True):
        S, T = input_lengths[row], output_lengths[row]
        pieces = [
            [_shown(vocabulary.piece(int(token))) for token in tokens]
            for tokens in (inputs[row, :S], predictions[row, :T])
        ]
        hundredths = np.rint(weight[:T, :S] * _WHOLE).astype(int).tolist()
        maps.append({"inputs": pieces[0], "outputs": pieces[1], "weights": hundredths})
    return maps


def _shown(piece: str) -> str:
    """A piece as a person reads it: the byte <0x41> as A."""
    byte = re.fullmatch("<0x([0-9A-F]{2})>", piece)
    return one_line(chr(int(byte[1], 16))).replace(" ", "␣") if byte and int(byte[1], 16) < _ASCII else piece
