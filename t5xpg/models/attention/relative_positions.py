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
    A decoder (not bidirectional) puts all distances ahead into bucket 0. With float64, a few buckets would differ.
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
    """The bias of every bucket, [H, buckets] float32, and how distances fall into buckets.

    bidirectional: as in `relative_position_bucket`.
    """

    table: jax.Array
    bidirectional: bool
    num_buckets: int
    max_distance: int

    def __call__(self, queries: int, keys: int, first: int = 0) -> jax.Array:
        """[1, H, queries, keys] float32. first: the index of the key at the first query's position."""
        return toeplitz(self.by_distance(queries, keys, first), queries, keys)[None]

    def by_distance(self, queries: int, keys: int, first: int = 0) -> jax.Array:
        """[H, queries + keys - 1] float32: the bias of every distance, first that of the last query and first key."""
        # key - query in [-(queries-1), keys-1] where the first key is at the first query's position
        distances = np.arange(-(queries - 1), keys, dtype=np.int32) - first
        buckets = relative_position_bucket(distances, self.bidirectional, self.num_buckets, self.max_distance)
        one_hot = jnp.asarray(buckets[None, :] == np.arange(self.num_buckets)[:, None], jnp.float32)
        return jnp.dot(self.table, one_hot, precision=lax.Precision.HIGHEST)


class RelativePositionBias(nnx.Module):
    """The parameters of relative positions, of a stack or of a layer: a bias [H, buckets]."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        assert config.buckets is not None
        self.num_buckets, self.max_distance = config.buckets.num_buckets, config.buckets.max_distance
        shape, axes = (config.num_heads, self.num_buckets), ("heads", "relpos_buckets")
        self.rel_embedding = parameter(named_key(key, "rel_embedding"), _position_init, shape, axes)

    def table(self, *, bidirectional: bool) -> PositionTable:
        """The table as an encoder (bidirectional) or a decoder reads it."""
        return PositionTable(self.rel_embedding[...], bidirectional, self.num_buckets, self.max_distance)


def toeplitz(by_distance: jax.Array, queries: int, keys: int) -> jax.Array:
    """[H, queries + keys - 1] -> [H, queries, keys] with out[h, q, k] = by_distance[h, k - q + queries - 1].

    It reads repeated rows with a stride that is one too short: this shifts each row by one. There are only copies, so
    the gradient is a sum; that of a gather scatters all pairs into few places, slowly and on GPUs in no fixed order.
    """
    heads, count = by_distance.shape
    assert count == queries + keys - 1
    padded = jnp.pad(by_distance, ((0, 0), (0, 1)))
    rows = jnp.broadcast_to(padded[:, None, :], (heads, queries, count + 1)).reshape(heads, queries * (count + 1))
    return rows[:, : queries * count].reshape(heads, queries, count)[..., queries - 1 :]
