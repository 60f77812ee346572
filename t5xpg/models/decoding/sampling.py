"""Sampling with a temperature, top-k and top-p, several samples of a row.

Source: t5x/decoding.py (temperature_sample) for the order of operations, and for keeping tokens as probable as the
last one kept. A sample depends on the seed, on the numbers of row, sample and position, and on the logits, but not
on the other rows of the batch. Shapes: B batch, N samples, T length, V vocab.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from t5xpg.models.decoding.config import MIN_TEMPERATURE, DecodingConfig
from t5xpg.models.decoding.constraint import allowed_logits
from t5xpg.models.decoding.protocol import Cache, Decodable, Decoded, Params, length_limits, rows_at_a_time
from t5xpg.models.decoding.top_k import argmax, highest_threshold, in_order
from t5xpg.models.rng import stream_key

STREAM = "decoding"


def filtered_logits(logits: jax.Array, config: DecodingConfig) -> jax.Array:
    """The model's logits [..., V] float32, divided by the temperature, and -inf for tokens left out by top-k or top-p.

    Tokens as probable as the last one kept are kept, too.
    """
    logits = logits / jnp.float32(config.temperature)
    if 0 < config.topk < logits.shape[-1]:
        threshold = highest_threshold(logits, lambda kept: jnp.sum(kept.astype(jnp.int32), axis=-1) >= config.topk)
        logits = jnp.where(in_order(logits) >= threshold[..., None], logits, -jnp.inf)
    if 0 < config.topp < 1:
        probabilities = jax.nn.softmax(logits, axis=-1)
        threshold = highest_threshold(
            probabilities, lambda kept: jnp.sum(jnp.where(kept, probabilities, 0.0), axis=-1) >= config.topp
        )
        logits = jnp.where(in_order(probabilities) >= threshold[..., None], logits, -jnp.inf)
    return logits


class _State(NamedTuple):
    step: jax.Array  # int32
    ended: jax.Array  # [B, N] boolean
    previous: jax.Array  # [B, N] int32
    tokens: jax.Array  # [B, N, T] int32
    scores: jax.Array  # [B, N] float32
    cache: Cache


def sample(
    model: Decodable,
    params: Params,
    inputs: jax.Array,
    max_decode_length: int,
    config: DecodingConfig,
    row_numbers: jax.Array | None = None,
    eos_id: int = 1,
) -> Decoded:
    """`config.decodes` samples of each row, the most probable first (of equals, the first drawn).

    inputs: [B, S] int32, padded with 0. Each sample ends with its eos_id (unless it is as long as allowed) and
    holds 0 after it; rows that are all padding have ended from the start. row_numbers: [B] int32, a row's number
    in whatever batch it is; None: its place in this batch. Scores are log probabilities, of the distribution drawn from
    or of the model (rescale_log_probs). To be jitted by the caller with all but params, inputs and row_numbers fixed;
    stops as soon as every sample has ended. With a temperature of 0, all samples are the greedy answer.
    """
    B, N, T = inputs.shape[0], config.decodes, max_decode_length
    numbers = jnp.arange(B, dtype=jnp.int32) if row_numbers is None else row_numbers.astype(jnp.int32)
    keys = _keys(config.seed, numbers, N)
    limits = length_limits(inputs, T, config.extra_length)
    is_greedy = N == 1 and config.temperature < MIN_TEMPERATURE  # the greedy answer, without an axis for others

    def unfinished(state: _State) -> jax.Array:
        return (state.step < T) & ~jnp.all(state.ended)

    def extend(state: _State) -> _State:
        previous = state.previous[:, 0] if is_greedy else state.previous
        logits, cache = model.decode_step(params, state.cache, previous, state.step)
        logits = logits[:, None] if is_greedy else logits
        allowed = allowed_logits(model, logits, cache)
        chosen, log_probability = _choose(config, keys, logits, allowed, state.step)
        chosen = jnp.where(state.ended, jnp.int32(0), chosen)
        scores = state.scores + jnp.where(state.ended, 0.0, log_probability)
        tokens = lax.dynamic_update_slice_in_dim(state.tokens, chosen[..., None], state.step, axis=2)
        length = state.step + jnp.int32(1)
        ended = state.ended | (chosen == eos_id) | (length >= limits)[:, None]
        return _State(length, ended, chosen, tokens, scores, cache)

    state = lax.while_loop(
        unfinished,
        extend,
        _State(
            jnp.int32(0),
            jnp.broadcast_to((limits == 0)[:, None], (B, N)),
            jnp.broadcast_to(model.first_tokens(inputs)[:, None], (B, N)),
            jnp.zeros((B, N, T), jnp.int32),
            jnp.zeros((B, N), jnp.float32),
            model.init_cache(params, inputs, T, rows=rows_at_a_time(inputs), beams=None if is_greedy else N),
        ),
    )
    order = jnp.argsort(-state.scores, axis=1, stable=True)
    tokens = jnp.take_along_axis(state.tokens, order[..., None], axis=1, mode="clip")
    return Decoded(tokens, jnp.take_along_axis(state.scores, order, axis=1, mode="clip"))


def _choose(
    config: DecodingConfig, keys: jax.Array, logits: jax.Array, allowed: jax.Array, step: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Tokens [B, N] and their log probabilities. keys: of the samples, [B, N]. logits: [B, N, V]; allowed: the same,
    with NONE for tokens that must not follow."""
    if config.temperature < MIN_TEMPERATURE:
        chosen = argmax(allowed)
        if config.rescale_log_probs:
            return chosen, jnp.zeros(chosen.shape, jnp.float32)
        return chosen, _log_probability(logits, chosen)
    filtered = filtered_logits(allowed, config)
    step_keys = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, step)))(keys)
    chosen = jax.vmap(jax.vmap(jax.random.categorical))(step_keys, filtered).astype(jnp.int32)
    return chosen, _log_probability(filtered if config.rescale_log_probs else logits, chosen)


def _keys(seed: int, row_numbers: jax.Array, samples: int) -> jax.Array:
    """A key for each sample of each row: [B, N]."""
    key = stream_key(seed, STREAM)
    row_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, row_numbers)
    numbers = jnp.arange(samples, dtype=jnp.int32)
    return jax.vmap(lambda key: jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, numbers))(row_keys)


def _log_probability(logits: jax.Array, chosen: jax.Array) -> jax.Array:
    """[..., V] and [...] int32 -> [...] float32."""
    chosen_logits = jnp.take_along_axis(logits, chosen[..., None], axis=-1, mode="clip")[..., 0]
    return chosen_logits - jax.nn.logsumexp(logits, axis=-1)
