"""Predictions with a key-value cache: greedy, by beam search, by sampling; and scores of given targets.

    decode(model, params, inputs, DecodingConfig(method="beam", num_decodes=4), max_decode_length=64)

Every function is pure and made to be jitted by its caller. Models are reached through `Decodable` alone.
"""

from __future__ import annotations

import jax

from t5xpg.decoding.beam_search import Rule, beam_search
from t5xpg.decoding.config import DecodingConfig
from t5xpg.decoding.greedy_search import greedy
from t5xpg.decoding.masks import fill_masks
from t5xpg.decoding.protocol import Decodable, Decoded, Params
from t5xpg.decoding.sampling import Distribution, sample
from t5xpg.decoding.scoring import Scorable, score

__all__ = [
    "Decodable",
    "Decoded",
    "DecodingConfig",
    "Distribution",
    "Rule",
    "Scorable",
    "beam_search",
    "decode",
    "fill_masks",
    "greedy",
    "sample",
    "score",
]


def decode(
    model: Decodable,
    params: Params,
    inputs: jax.Array,
    config: DecodingConfig,
    max_decode_length: int,
    row_numbers: jax.Array | None = None,
    eos_id: int = 1,
    pad_id: int = 0,
) -> Decoded:
    """Decode inputs [B, S] by the method of `config`, into `config.returned` sequences for each row.

    max_decode_length: where the config names none. row_numbers: see `sample`; other methods do not need them.
    """
    length = config.max_decode_length or max_decode_length
    if config.method == "greedy":
        return Decoded(greedy(model, params, inputs, length, eos_id, pad_id)[:, None], None)
    if config.method == "beam":
        rule = Rule(config.length_penalty, config.alpha, config.early_stopping)
        found = beam_search(model, params, inputs, length, config.decodes, rule, eos_id, pad_id)
    else:
        of = Distribution(config.temperature, config.topk, config.topp, config.rescale_log_probs)
        found = sample(model, params, inputs, length, config.decodes, of, config.seed, row_numbers, eos_id, pad_id)
    return jax.tree.map(lambda values: values[:, : config.returned], found)
