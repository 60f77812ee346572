"""A model without layers, to test searches with: what it has read is a number, and a table says what may follow.

The number depends on all tokens before, so that a search which mixes up its beams is found out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

STATES, VOCABULARY, END = 101, 13, 1


def table(seed: int, end: float = 0.0) -> np.ndarray:
    """[STATES, VOCABULARY] float32 logits; end: added to those of the end."""
    logits = np.random.default_rng(seed).normal(size=(STATES, VOCABULARY)) * 1.5
    logits[:, END] += end
    return logits.astype(np.float32)


@dataclass(frozen=True)
class Automaton:
    """A `Decodable` whose parameters are the table. Row b starts in the state sum(inputs[b])."""

    def init_cache(
        self,
        params: jax.Array,
        inputs: jax.Array,
        max_decode_length: int,
        rows: int | None = None,
        beams: int | None = None,
        reordered: bool = False,
    ) -> dict[str, jax.Array]:
        states = jnp.sum(inputs, axis=1, dtype=jnp.int32) % STATES
        return {"states": states if beams is None else jnp.repeat(states[:, None], beams, axis=1)}

    def first_tokens(self, inputs: jax.Array) -> jax.Array:
        return jnp.zeros(inputs.shape[:1], jnp.int32)

    def decode_step(self, params: jax.Array, cache: Any, tokens: jax.Array, step: jax.Array) -> tuple[jax.Array, Any]:
        states = _after(cache["states"], tokens)
        return params[states], {"states": states}

    def reorder_beams(self, cache: Any, parents: jax.Array) -> Any:
        return {"states": jnp.take_along_axis(cache["states"], parents, axis=1)}


def _after(state: Any, token: Any) -> Any:
    return (state * 31 + token * 7 + 3) % STATES


def log_probabilities(params: np.ndarray, inputs: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """[VOCABULARY] float64: of what follows `tokens` in a row with these inputs."""
    state = int(sum(inputs)) % STATES
    for token in (0, *tokens):
        state = int(_after(state, int(token)))
    logits = params[state].astype(np.float64)
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def rows(count: int, length: int = 6) -> np.ndarray:
    """[count, length] int32, padded; no two rows alike."""
    tokens = np.random.default_rng(count).integers(2, 90, size=(count, length)).astype(np.int32)
    for row in range(count):
        tokens[row, length - row % 3 :] = 0
    return tokens
