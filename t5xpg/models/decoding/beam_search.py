"""Beam search with the rules for lengths and stopping of T5X or of transformers.

Source: t5x/decoding.py (beam_search), transformers' generation/utils.py (_beam_search). Both take the best 2 * N of all
continuations of a row's N hypotheses. Those that end are candidates for the N best ended hypotheses; of the others, the
best N go on. Each row decides alone when it is done: the other rows of a batch change nothing.
Shapes: B batch, N beams, T length, V vocab.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from t5xpg.models.decoding.config import T5X, TRANSFORMERS, DecodingConfig
from t5xpg.models.decoding.constraint import allowed_logits
from t5xpg.models.decoding.protocol import NONE, Cache, Decodable, Decoded, Params, length_limits, rows_at_a_time
from t5xpg.models.decoding.top_k import top_k, top_k_of_sums


def length_penalties(config: DecodingConfig, length: int) -> np.ndarray:
    """[length + 1] float32: the divisor of a log probability, for every number of tokens."""
    tokens = np.arange(length + 1, dtype=np.float64)
    base = (5.0 + tokens) / 6.0 if config.length_penalty == T5X else np.maximum(tokens, 1.0)
    return (base**config.alpha).astype(np.float32)


class Hypotheses(NamedTuple):
    """N for each row, the best first. tokens [B, N, T] int32; scores [B, N] float32, `NONE` or less if empty."""

    tokens: jax.Array
    scores: jax.Array


class _State(NamedTuple):
    step: jax.Array  # int32
    done: jax.Array  # [B] boolean
    live: Hypotheses  # their scores are log probabilities
    ended: Hypotheses  # their scores have the length penalty
    cache: Cache


def beam_search(
    model: Decodable, params: Params, inputs: jax.Array, max_decode_length: int, config: DecodingConfig, eos_id: int = 1
) -> Decoded:
    """The best `config.decodes` sequences that a search with as many beams finds.

    inputs: [B, S] int32, padded with 0. Each sequence ends with its eos_id (unless it is as long as allowed) and holds
    0 after it. Scores have the length penalty. To be jitted by the caller with the length and the config fixed;
    the search stops as soon as every row is done.

    Where fewer sequences of a row have ended than there are beams (T5X's rule, at the full length), sequences without
    an end follow after them; T5X itself returns those only if none has ended, and without the penalty.
    """
    B, N, T = inputs.shape[0], config.decodes, max_decode_length
    penalties = jnp.asarray(length_penalties(config, T))
    limits = length_limits(inputs, T, config.extra_length)
    last_penalties = penalties[limits]
    cache = model.init_cache(params, inputs, T, rows=rows_at_a_time(inputs), beams=N, reordered=True)
    first = model.first_tokens(inputs)
    start = _start(limits, N, T, cache)

    def unfinished(state: _State) -> jax.Array:
        return (state.step < T) & ~jnp.all(state.done)

    def extend(state: _State) -> _State:
        step, length = state.step, state.step + jnp.int32(1)
        before = lax.dynamic_index_in_dim(state.live.tokens, jnp.maximum(step - 1, 0), axis=2, keepdims=False)
        previous = jnp.where(step == 0, first[:, None], before)
        logits, cache = model.decode_step(params, state.cache, previous, step)
        allowed = allowed_logits(model, logits, cache)
        candidates, beams, last_tokens = _candidates(state.live, logits, allowed, step)
        ends = last_tokens == eos_id
        counted = ends
        if config.length_penalty == TRANSFORMERS:
            ends = ends | (length >= limits)[:, None]
            counted = ends & (jnp.arange(2 * N) < N)
        ended = _best_ended(state.ended, candidates, counted, penalties, length)
        # a row that is done keeps what it has
        ended = jax.tree.map(functools.partial(_where, state.done), state.ended, ended)
        live, ranks = _best(candidates._replace(scores=jnp.where(ends, jnp.float32(NONE), candidates.scores)), N)
        live = jax.tree.map(functools.partial(_where, state.done), state.live, live)
        cache = model.reorder_beams(cache, jnp.take_along_axis(beams, ranks, axis=1, mode="clip"))
        done = _is_done(config, live.scores, ended.scores, penalties[length], last_penalties)
        done = done | state.done | (length >= limits) | (live.scores[:, 0] < NONE / 2)
        return _State(length, done, live, ended, cache)

    state = lax.while_loop(unfinished, extend, start)
    best = _fill_up(state.ended, state.live, last_penalties[:, None])
    padding = Hypotheses(start.ended.tokens, jnp.zeros((B, N), jnp.float32))
    return Decoded(*jax.tree.map(functools.partial(_where, limits == 0), padding, best))


def _start(limits: jax.Array, beams: int, length: int, cache: Cache) -> _State:
    """The state before the first step, which has one hypothesis for each row. limits: [B], 0 for rows without text."""
    shape = limits.shape[0], beams
    no_tokens = jnp.zeros((*shape, length), jnp.int32)
    first_scores = jnp.where(jnp.arange(beams) == 0, jnp.float32(0.0), jnp.float32(NONE))
    return _State(
        jnp.int32(0),
        limits == 0,
        Hypotheses(no_tokens, jnp.broadcast_to(first_scores, shape)),
        Hypotheses(no_tokens, jnp.full(shape, NONE, jnp.float32)),
        cache,
    )


def _candidates(
    live: Hypotheses, logits: jax.Array, allowed: jax.Array, step: jax.Array
) -> tuple[Hypotheses, jax.Array, jax.Array]:
    """The best 2 * N continuations, with their log probabilities; the beam that each continues; its token at `step`.

    logits: [B, N, V]. allowed: the same, with NONE for tokens that must not follow. Beams and tokens: [B, 2 * N] int32.
    """
    shifts = live.scores[..., None] - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    scores, places = top_k_of_sums(allowed, shifts, 2 * live.scores.shape[1])
    beams, last_tokens = places // logits.shape[-1], places % logits.shape[-1]
    tokens = _rows(live.tokens, beams)
    tokens = lax.dynamic_update_slice_in_dim(tokens, last_tokens[..., None], step, axis=2)
    return Hypotheses(tokens, scores), beams, last_tokens


def _best_ended(
    ended: Hypotheses, candidates: Hypotheses, counted: jax.Array, penalties: jax.Array, length: jax.Array
) -> Hypotheses:
    """The best N of the ended hypotheses and of the candidates that count as ended. counted: boolean [B, 2 * N]."""
    counted = counted & (candidates.scores > NONE / 2)  # with a vocabulary smaller than 2 * N, some places are empty
    penalised = jnp.where(counted, candidates.scores / penalties[length], jnp.float32(NONE))
    new = candidates._replace(scores=penalised)
    pool = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), ended, new)
    return _best(pool, ended.scores.shape[1])[0]


def _where(rows: jax.Array, these: jax.Array, those: jax.Array) -> jax.Array:
    """[B, ...]: `these` where `rows` [B] is true, `those` elsewhere."""
    return jnp.where(rows.reshape(-1, *[1] * (these.ndim - 1)), these, those)


def _is_done(
    config: DecodingConfig, live: jax.Array, ended: jax.Array, penalty: jax.Array, last_penalties: jax.Array
) -> jax.Array:
    """[B] boolean: true if the search of a row ends. live, ended: scores [B, N], descending. penalty: that of the
    present length; last_penalties: [B], that of the greatest length of each row."""
    worst = ended[:, -1]
    is_full = worst > NONE / 2
    if config.length_penalty == T5X:
        return is_full & (worst > live[:, 0] / last_penalties)
    if config.early_stopping is True:
        return is_full
    reaches = last_penalties if config.early_stopping == "never" and config.alpha > 0 else penalty
    return is_full & (worst >= live[:, 0] / reaches)


def _rows(x: jax.Array, places: jax.Array) -> jax.Array:
    """x [B, N, ...] at places [B, M] -> [B, M, ...]."""
    return jnp.take_along_axis(x, places.reshape(*places.shape, *[1] * (x.ndim - 2)), axis=1, mode="clip")


def _best(hypotheses: Hypotheses, count: int) -> tuple[Hypotheses, jax.Array]:
    """The best `count` of each row, and their places [B, count]."""
    scores, places = top_k(hypotheses.scores, count)
    return Hypotheses(_rows(hypotheses.tokens, places), scores), places


def _fill_up(ended: Hypotheses, live: Hypotheses, penalty: jax.Array) -> Hypotheses:
    """The ended hypotheses of each row; if they are too few, live ones follow, the best first; and where there are no
    more of them either, padding with the score -inf."""
    N = ended.scores.shape[1]
    is_ended = ended.scores > NONE / 2
    count = jnp.sum(is_ended.astype(jnp.int32), axis=1, keepdims=True)
    places = jnp.maximum(jnp.arange(N, dtype=jnp.int32) - count, 0)
    live_scores = _rows(live.scores, places)
    is_live = ~(live_scores <= NONE / 2)  # NaN, as of a model with NaN, is shown
    live_tokens = jnp.where(is_live[..., None], _rows(live.tokens, places), 0)
    return Hypotheses(
        jnp.where(is_ended[..., None], ended.tokens, live_tokens),
        jnp.where(is_ended, ended.scores, jnp.where(is_live, live_scores / penalty, -jnp.inf)),
    )
