"""Greedy decoding: the most probable token at every position."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from t5xpg.decoding.largest import first_of_the_largest
from t5xpg.decoding.protocol import Cache, Decodable, Params, is_empty, rows_at_a_time


def greedy(
    model: Decodable,
    params: Params,
    encoder_input_tokens: jax.Array,
    max_decode_length: int,
    eos_id: int = 1,
    pad_id: int = 0,
) -> jax.Array:
    """The most probable token at every position, given those chosen before.

    encoder_input_tokens: [B, S] int32, padded with 0. Returns [B, max_decode_length] int32: each row ends with its
    eos_id (unless it reaches the length before) and holds pad_id after it. Where logits are equal the smaller id wins.
    Stops as soon as every row has ended. To be jitted by the caller with max_decode_length fixed.
    Rows that are padding throughout count as ended from the start: evaluation pads its last batch with them.
    """
    batch_size = encoder_input_tokens.shape[0]
    cache = model.init_cache(params, encoder_input_tokens, max_decode_length, rows=rows_at_a_time(encoder_input_tokens))
    tokens = jnp.full((batch_size, max_decode_length), pad_id, jnp.int32)
    first = model.first_tokens(encoder_input_tokens)
    ended = is_empty(encoder_input_tokens)

    State = tuple[jax.Array, jax.Array, jax.Array, jax.Array, Cache]

    def unfinished(state: State) -> jax.Array:
        step, _, ended, _, _ = state
        return (step < max_decode_length) & ~jnp.all(ended)

    def choose(state: State) -> State:
        step, previous, ended, tokens, cache = state
        logits, cache = model.decode_step(params, cache, previous, step)
        chosen = jnp.where(ended, jnp.int32(pad_id), first_of_the_largest(logits))
        tokens = lax.dynamic_update_slice_in_dim(tokens, chosen[:, None], step, axis=1)
        return step + jnp.int32(1), chosen, ended | (chosen == eos_id), tokens, cache

    return lax.while_loop(unfinished, choose, (jnp.int32(0), first, ended, tokens, cache))[3]
