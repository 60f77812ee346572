"""Predictions with a key-value cache: greedy, by beam search, by sampling; and scores of given targets.

    decode(model, params, inputs, DecodingConfig(method="beam", num_decodes=4), max_decode_length=64)

Every function is pure and made to be jitted by its caller. Decoding uses a model only through `Decodable`.
"""

import jax
import jax.numpy as jnp

from t5xpg.base.errors import UserError
from t5xpg.models.decoding.beam_search import beam_search
from t5xpg.models.decoding.config import DecodingConfig
from t5xpg.models.decoding.constraint import Constrained, Constraint
from t5xpg.models.decoding.protocol import Decodable, Decoded, Params
from t5xpg.models.decoding.ranking import rank
from t5xpg.models.decoding.sampling import sample
from t5xpg.models.decoding.top_k import argmax
from t5xpg.models.losses import cross_entropy_with_logits, token_weights
from t5xpg.models.model import Batch, Model

__all__ = [
    "Constraint",
    "Decoded",
    "DecodingConfig",
    "beam_search",
    "decode",
    "fill_masks",
    "greedy",
    "rank",
    "sample",
    "score",
]


def greedy(
    model: Decodable,
    params: Params,
    inputs: jax.Array,
    max_decode_length: int,
    eos_id: int = 1,
    extra_length: int | None = None,
) -> jax.Array:
    """The most probable token at every position, given those chosen before: [B, max_decode_length] int32.

    It is `sample` with temperature 0. Where logits are equal, the smaller id wins.
    """
    config = DecodingConfig("sample", temperature=0.0, extra_length=extra_length)
    return sample(model, params, inputs, max_decode_length, config, None, eos_id).tokens[:, 0]


def score(model: Model, params: Params, batch: Batch) -> jax.Array:
    """The log-likelihood of each row's targets, in nats: [B] float32, as T5X's score_batch.

    batch: as for the model's `logits`, with decoder_target_tokens [B, T]. A sum weighted by `token_weights`: no
    z-loss, no smoothing, no division by a length. Raises UserError for packed rows, which hold several examples.
    """
    if packed := sorted(name for name in batch if name.endswith("_segment_ids")):
        raise UserError(f"Scores are of one example a row, and these rows are packed ({packed[0]}): read without PACK.")
    losses = cross_entropy_with_logits(model.logits(params, batch), batch["decoder_target_tokens"])
    return -jnp.sum(losses * token_weights(batch), axis=-1)


def fill_masks(model: Model, params: Params, inputs: jax.Array, mask_id: int) -> Decoded:
    """inputs [B, S] int32, padded with 0 -> [B, 1, S] with a token in place of each mask, chosen independently."""
    chosen = argmax(model.logits(params, {"encoder_input_tokens": inputs}))
    return Decoded(jnp.where(inputs == mask_id, chosen, inputs)[:, None], None)


def decode(
    model: Decodable,
    params: Params,
    inputs: jax.Array,
    config: DecodingConfig,
    max_decode_length: int,
    row_numbers: jax.Array | None = None,
    eos_id: int = 1,
    constraint: Constraint | jax.Array | None = None,
) -> Decoded:
    """Decode inputs [B, S] by the method of `config`, into `config.ranked` sequences for each row.

    max_decode_length: used where the config has none. row_numbers: see `sample`; other methods do not need them.
    constraint: accepts every answer; where it accepts fewer than there are beams, padding of score -inf follows. For
    the method "rank": the answers themselves, as of `rank`.
    """
    if config.method == "rank":
        assert isinstance(constraint, jax.Array)
        return rank(model, params, inputs, constraint, config.ranked)
    if isinstance(constraint, Constraint):
        model = Constrained(model, constraint)
    length = config.max_decode_length or max_decode_length
    if config.method == "greedy":
        return Decoded(greedy(model, params, inputs, length, eos_id, config.extra_length)[:, None], None)
    if config.method == "beam":
        sequences = beam_search(model, params, inputs, length, config, eos_id)
    else:
        sequences = sample(model, params, inputs, length, config, row_numbers, eos_id)
    return jax.tree.map(lambda values: values[:, : config.ranked], sequences)
