"""T5's relative positions: a bias of attention logits for every bucket of distances."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.nn import initializers

from t5xpg.models.config import T5Config
from t5xpg.models.layers import Initializer, named_key, parameter

_position_init: Initializer = initializers.variance_scaling(1.0, "fan_avg", "uniform")


def relative_position_bucket(
    relative_position: np.ndarray, bidirectional: bool, num_buckets: int, max_distance: int
) -> np.ndarray:
    """T5's bucket of key position minus query position; int32, same shape.

    Half of the buckets of a direction stand for one distance each; the others grow logarithmically up to max_distance.
    A decoder (not bidirectional) puts all distances ahead into bucket 0. In float64 a few would fall into others.
    """
    bucket = np.zeros_like(relative_position, dtype=np.int32)
    distance = -relative_position.astype(np.int32)
    if bidirectional:
        num_buckets //= 2
        bucket += np.where(distance < 0, num_buckets, 0).astype(np.int32)
        distance = np.abs(distance)
    else:
        distance = np.maximum(distance, 0)
    exact = num_buckets // 2
    logarithm = np.log(distance.astype(np.float32) / np.float32(exact) + np.finfo(np.float32).eps)
    large = exact + (logarithm / math.log(max_distance / exact) * (num_buckets - exact)).astype(np.int32)
    return bucket + np.where(distance < exact, distance, np.minimum(large, num_buckets - 1)).astype(np.int32)


@dataclass(frozen=True)
class PositionTable:
    """The bias of every bucket, [H, buckets] float32, and how distances fall into buckets."""

    table: jax.Array
    bidirectional: bool
    num_buckets: int
    max_distance: int

    def __call__(self, queries: int, keys: int) -> jax.Array:
        """[1, H, queries, keys] float32."""
        return toeplitz(self.by_distance(queries, keys), queries, keys)[None]

    def by_distance(self, queries: int, keys: int) -> jax.Array:
        """[H, queries + keys - 1] float32: the bias of every distance, from the last query to the first key on."""
        # key - query in [-(queries-1), keys-1]
        distances = np.arange(-(queries - 1), keys, dtype=np.int32)
        buckets = relative_position_bucket(distances, self.bidirectional, self.num_buckets, self.max_distance)
        one_hot = jnp.asarray(buckets[None, :] == np.arange(self.num_buckets)[:, None], jnp.float32)
        return jnp.dot(self.table, one_hot, precision=lax.Precision.HIGHEST)


class RelativePositionBias(nnx.Module):
    """Bias of attention logits by bucketed distance, one table [H, buckets] for all layers of a stack."""

    def __init__(self, key: jax.Array, config: T5Config, bidirectional: bool) -> None:
        self.bidirectional = bidirectional
        self.num_buckets = config.relative_attention_num_buckets
        self.max_distance = config.relative_attention_max_distance
        shape, axes = (config.num_heads, self.num_buckets), ("heads", "relpos_buckets")
        self.rel_embedding = parameter(named_key(key, "rel_embedding"), _position_init, shape, axes)

    def __call__(self, queries: int, keys: int) -> jax.Array:
        return self._table(self.bidirectional)(queries, keys)

    def by_distance(self, queries: int, keys: int) -> jax.Array:
        return self._table(self.bidirectional).by_distance(queries, keys)

    def in_both_directions(self) -> PositionTable:
        """Its numbers, read as those of an encoder."""
        return self._table(bidirectional=True)

    def _table(self, bidirectional: bool) -> PositionTable:
        return PositionTable(self.rel_embedding[...], bidirectional, self.num_buckets, self.max_distance)


def toeplitz(by_distance: jax.Array, queries: int, keys: int) -> jax.Array:
    """[H, queries + keys - 1] -> [H, queries, keys] with out[h, q, k] = by_distance[h, k - q + queries - 1].

    Reading a repeated row with a stride that is one short shifts every row by one. Only copies, so that the gradient
    is a sum: a gather would scatter all pairs of positions into few places, slowly and in no fixed order on GPUs.
    """
    heads, count = by_distance.shape
    assert count == queries + keys - 1
    padded = jnp.pad(by_distance, ((0, 0), (0, 1)))
    repeated = jnp.broadcast_to(padded[:, None, :], (heads, queries, count + 1)).reshape(heads, queries * (count + 1))
    skewed = repeated[:, : queries * count].reshape(heads, queries, count)
    return skewed[:, :, queries - 1 :]
