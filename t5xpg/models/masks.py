"""Which position may see which, as additive biases of attention logits (0 or MASKED, float32).

Only keys are masked for padding: what a padding position sees has no weight in any loss, and a mask over keys
[B, 1, 1, S] is a length smaller than one over pairs. Packed rows need pairs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

# T5X's bias for masked positions: large enough that exp() is 0, and finite, so that a row that is masked throughout
# (a padding row) has no NaN
MASKED = -1e10


def as_bias(visible: jax.Array) -> jax.Array:
    """Boolean -> 0 where visible, MASKED elsewhere, float32."""
    return jnp.where(visible, jnp.float32(0.0), jnp.float32(MASKED))


def visible_keys(
    key_tokens: jax.Array, query_segments: jax.Array | None = None, key_segments: jax.Array | None = None
) -> jax.Array:
    """Boolean [B, 1, 1 or Q, S]: keys [B, S] that are no padding (id 0), and of the query's segment where packed."""
    visible = (key_tokens > 0)[:, None, None, :]
    if query_segments is not None and key_segments is not None:
        visible = visible & (query_segments[:, None, :, None] == key_segments[:, None, None, :])
    return visible


def causal(queries: int, keys: int | None = None, first: int | jax.Array = 0) -> jax.Array:
    """Boolean [1, 1, queries, keys]: the query's own position and those before it.

    keys: as many as queries, where not given. first: the position of the first query.
    """
    query_positions = first + jnp.arange(queries, dtype=jnp.int32)
    key_positions = jnp.arange(queries if keys is None else keys, dtype=jnp.int32)
    return (query_positions[:, None] >= key_positions[None, :])[None, None]


def with_prefix(visible: jax.Array, prefix: jax.Array | None) -> jax.Array:
    """Boolean [1, 1, Q, S]: as visible, and for all queries the keys whose `prefix` [B, S] is not 0: [B, 1, Q, S]."""
    return visible if prefix is None else visible | (prefix > 0)[:, None, None, :]
