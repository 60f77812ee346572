"""Constrained decoding: answers that a finite automaton over tokens accepts, and no others.

The automaton is a handful of arrays on the device. A search masks the tokens that it does not allow at each step; the
log probabilities of beams stay those of the model, so that a score is that of the same answer without a constraint.
Shapes: B batch, N beams or samples, V vocab, S states, A transitions, T length.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from t5xpg.models.decoding.protocol import NONE, Cache, Decodable, Params

_AT_ONCE = 64  # the fewest transitions of a state that are looked at in one pass
_UNREACHABLE = np.iinfo(np.int32).max - 1


class Constraint(NamedTuple):
    """A deterministic automaton over token ids. State 0 is the start; the last state, without transitions, is the end,
    to which end tokens lead. All arrays are int32.

    offsets: [S + 1]; the transitions of state s are those from offsets[s] to offsets[s + 1]. tokens: [A], ascending
    within a state. next_states: [A]. distances: [S], the fewest tokens from a state to the end, the end token included.
    """

    offsets: jax.Array
    tokens: jax.Array
    next_states: jax.Array
    distances: jax.Array


def automaton(sources: np.ndarray, tokens: np.ndarray, targets: np.ndarray, num_states: int) -> Constraint:
    """The constraint with these transitions, each from a state by a token to a state; all are [A].

    State 0 is the start, num_states - 1 the end. A state has at most one transition by a token, and the end none.
    """
    order = np.lexsort((tokens, sources))
    sources, tokens, targets = sources[order], tokens[order], targets[order]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(sources, minlength=num_states))])
    distances = np.full(num_states, _UNREACHABLE, np.int32)
    distances[-1] = 0
    while True:  # once for each token of the longest of the shortest ways to the end
        nearer = distances.copy()
        np.minimum.at(nearer, sources, np.minimum(distances[targets], _UNREACHABLE - 1) + 1)
        if np.array_equal(nearer, distances):
            return Constraint(*(jnp.asarray(array, jnp.int32) for array in (offsets, tokens, targets, distances)))
        distances = nearer


@dataclass(frozen=True)
class Constrained:
    """A `Decodable` whose answers a constraint accepts. `allowed_logits` masks the logits of its `decode_step`."""

    model: Decodable
    constraint: Constraint

    def init_cache(
        self,
        params: Params,
        inputs: jax.Array,
        max_decode_length: int,
        rows: int | None = None,
        beams: int | None = None,
        reordered: bool = False,
    ) -> Cache:
        """The model's cache, the state of each continuation, and how many tokens all and those that remain may be."""
        shape = (len(inputs),) if beams is None else (len(inputs), beams)
        return {
            "model": self.model.init_cache(
                params, inputs, max_decode_length, rows=rows, beams=beams, reordered=reordered
            ),
            "states": jnp.zeros(shape, jnp.int32),
            "length": jnp.int32(max_decode_length),
            "remaining": jnp.int32(max_decode_length),
        }

    def first_tokens(self, inputs: jax.Array) -> jax.Array:
        """The model's."""
        return self.model.first_tokens(inputs)

    def decode_step(self, params: Params, cache: Cache, tokens: jax.Array, step: jax.Array) -> tuple[jax.Array, Cache]:
        """The model's logits, not masked, and the cache in which each state is that after `tokens`."""
        logits, model_cache = self.model.decode_step(params, cache["model"], tokens, step)
        states = jnp.where(step == 0, cache["states"], _next_states(self.constraint, cache["states"], tokens))
        return logits, cache | {"model": model_cache, "states": states, "remaining": cache["length"] - step}

    def reorder_beams(self, cache: Cache, parents: jax.Array) -> Cache:
        """The cache in which beam n of a row continues the former beam parents[:, n]."""
        states = jnp.take_along_axis(cache["states"], parents, axis=1, mode="clip")
        return cache | {"model": self.model.reorder_beams(cache["model"], parents), "states": states}

    def mask(self, logits: jax.Array, cache: Cache) -> jax.Array:
        """The logits [..., V] after a step, `NONE` for each token that no allowed answer of the remaining length has.

        Those of continuations that have reached the end stay: searches do not read them.
        """
        offsets, tokens, next_states, distances = self.constraint
        V = logits.shape[-1]
        states = cache["states"].reshape(-1)
        starts, ends = offsets[states][:, None], offsets[states + 1][:, None]
        rows = jnp.arange(len(states), dtype=jnp.int32)[:, None]
        at_once = max(_AT_ONCE, len(tokens) // len(distances))  # in few passes, however dense the automaton is

        def more(looked_at: tuple[jax.Array, jax.Array]) -> jax.Array:
            return jnp.any(starts + looked_at[0] < ends)

        def look(looked_at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            count, allowed = looked_at
            places = starts + count + jnp.arange(at_once, dtype=jnp.int32)
            reaches = distances[next_states.at[places].get(mode="clip")] < cache["remaining"]
            here = jnp.where((places < ends) & reaches, tokens.at[places].get(mode="clip"), V)  # V: dropped
            return count + at_once, allowed.at[rows, here].set(True, mode="drop")

        start = (jnp.int32(0), jnp.broadcast_to(starts == ends, (len(states), V)))
        _, allowed = lax.while_loop(more, look, start)
        return jnp.where(allowed.reshape(logits.shape), logits, jnp.float32(NONE))


def allowed_logits(model: Decodable, logits: jax.Array, cache: Cache) -> jax.Array:
    """The logits of a step of any model, masked where the model is constrained."""
    return model.mask(logits, cache) if isinstance(model, Constrained) else logits


def _next_states(constraint: Constraint, states: jax.Array, tokens: jax.Array) -> jax.Array:
    """The state after a token in each state, by binary search; the end for a token that is not allowed there."""
    offsets, known, next_states, _ = constraint
    end = len(offsets) - 2

    def halve(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low + high) // 2
        is_lower = (low < high) & (known.at[middle].get(mode="clip") < tokens)
        return jnp.where(is_lower, middle + 1, low), jnp.where(is_lower | (low >= high), high, middle)

    places, _ = lax.fori_loop(0, len(known).bit_length(), halve, (offsets[states], offsets[states + 1]))
    is_found = (places < offsets[states + 1]) & (known.at[places].get(mode="clip") == tokens)
    return jnp.where(is_found, next_states.at[places].get(mode="clip"), jnp.int32(end))
