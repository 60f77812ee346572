"""The gate that leaves positions out of an encoder: MrT5's (Kallini et al. 2024, arXiv 2410.20771), with a fixed share.

MrT5 deletes the positions whose gate is low, more in some rows than in others, and a term of the loss controls their
share. Here every row of S positions keeps the same number, those with the highest gates: shapes are static, and the
loss has no such term (as when experts choose tokens: Raposo et al. 2024, arXiv 2404.02258). Padding is deleted first.
Kept positions stay in order; for tables of relative positions they are neighbours, rotary positions are as in the text.
Shapes: B batch, S positions, K kept ones, D emb.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.nn import initializers

from t5xpg.models.config import T5Config
from t5xpg.models.layers import RMSNorm, named_key, parameter


class KeptPositions(NamedTuple):
    """The positions [B, K] int32 that a gate keeps, in their order, and their gates [B, K] float32, between 0 and 2."""

    positions: jax.Array
    gates: jax.Array

    def gather(self, x: jax.Array) -> jax.Array:
        """[B, S, ...] -> [B, K, ...]."""
        return jnp.take_along_axis(x, self.positions.reshape(*self.positions.shape, *[1] * (x.ndim - 2)), axis=1)

    def scatter(self, x: jax.Array, length: int) -> jax.Array:
        """[B, ..., K] -> [B, ..., S], 0 where a position was left out."""
        places = jax.nn.one_hot(self.positions, length, dtype=x.dtype)
        return jnp.einsum("b...k,bks->b...s", x, places, precision=lax.Precision.HIGHEST)


class DeleteGate(nnx.Module):
    """A score for each position, the projection of its state on one vector. The positions with the highest are kept."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.rate = config.deletion_rate
        self.norm = RMSNorm(config.emb_dim)
        init = initializers.normal(config.emb_dim**-0.5)
        self.kernel = parameter(named_key(key, "kernel"), init, (config.emb_dim,), ("embed",))

    def __call__(self, x: jax.Array, tokens: jax.Array) -> KeptPositions:
        """x [B, S, D], tokens [B, S] int32, padding where 0."""
        scores = jnp.dot(self.norm(x).astype(jnp.float32), self.kernel[...], precision=lax.Precision.HIGHEST)
        order = lax.stop_gradient(jnp.where(tokens > 0, scores, -jnp.inf))
        positions = jnp.sort(lax.top_k(order, num_kept(tokens.shape[1], self.rate))[1], axis=1)
        return KeptPositions(positions, 2 * jax.nn.sigmoid(jnp.take_along_axis(scores, positions, axis=1)))


def num_kept(length: int, rate: float) -> int:
    """K, the number of positions kept out of S (`length`)."""
    return length - int(rate * length)
