"""Predictions: greedy decoding with a key-value cache."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from t5xpg.models.encoder_decoder import EncoderDecoderModel, Params

# How many tokens are encoded at a time on CPUs. What attention needs of so many stays in the processor's caches, and
# the products are wide enough; 32 rows of 256 or 512 take two to three times as long all at once.
_CPU_TOKENS = 512


def greedy(
    model: EncoderDecoderModel,
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
    batch_size, source_length = encoder_input_tokens.shape
    rows = max(1, _CPU_TOKENS // source_length) if jax.default_backend() == "cpu" else None
    cache = model.init_cache(params, encoder_input_tokens, max_decode_length, rows)
    tokens = jnp.full((batch_size, max_decode_length), pad_id, jnp.int32)
    # T5 begins with the padding id
    first = jnp.zeros((batch_size,), jnp.int32)
    ended = jnp.all(encoder_input_tokens == 0, axis=1)

    State = tuple[jax.Array, jax.Array, jax.Array, jax.Array, dict[str, Any]]

    def unfinished(state: State) -> jax.Array:
        step, _, ended, _, _ = state
        return (step < max_decode_length) & ~jnp.all(ended)

    def choose(state: State) -> State:
        step, previous, ended, tokens, cache = state
        logits, cache = model.decode_step(params, cache, previous, step)
        chosen = jnp.where(ended, jnp.int32(pad_id), _first_of_the_largest(logits))
        tokens = lax.dynamic_update_slice_in_dim(tokens, chosen[:, None], step, axis=1)
        return step + jnp.int32(1), chosen, ended | (chosen == eos_id), tokens, cache

    return lax.while_loop(unfinished, choose, (jnp.int32(0), first, ended, tokens, cache))[3]


def _first_of_the_largest(logits: jax.Array) -> jax.Array:
    """[B, V] -> [B] int32: argmax as two plain reductions, which CPUs do many numbers at a time."""
    V = logits.shape[-1]
    largest = jnp.max(logits, axis=-1, keepdims=True)
    # "not smaller" rather than "equal" finds something in a row with logits that are not numbers, too
    return jnp.min(jnp.where(logits < largest, jnp.int32(V), jnp.arange(V, dtype=jnp.int32)), axis=-1)
