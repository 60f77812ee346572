"""The layers of T5: dense, RMS norm, embedding, attention, relative position biases, gated MLP.

What they compute is what T5X's minimal T5 computes (t5x/examples/t5/layers.py): no biases, no scaling of attention
logits (folded into the query initialiser), parameters in float32, computed in the dtype of the inputs.
Shapes: B batch, S and T lengths, Q queries, D emb, H heads, K head_dim, F mlp, V vocab.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.nn import initializers

from t5xpg.models.config import T5Config
from t5xpg.models.dropout import Dropout
from t5xpg.models.keys import named_key

# T5X's bias for masked positions: large enough that exp() is 0, and finite, so that a row that is masked throughout
# (a padding row) has no NaN
MASKED = -1e10

Initializer = Callable[[jax.Array, tuple[int, ...], jnp.dtype], jax.Array]

_attention_init: Initializer = initializers.variance_scaling(1.0, "fan_in", "normal")
_dense_init: Initializer = initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
_embedding_init: Initializer = initializers.normal(1.0)
_position_init: Initializer = initializers.variance_scaling(1.0, "fan_avg", "uniform")

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
    "linear": lambda x: x,
}


def _parameter(key: jax.Array, init: Initializer, shape: tuple[int, ...], axes: tuple[str, ...]) -> nnx.Param:
    assert len(shape) == len(axes)
    return nnx.Param(init(key, shape, jnp.dtype("float32")), axes=axes)


class Dense(nnx.Module):
    """y = x W with W [inputs, outputs]; computed in the dtype of x."""

    def __init__(
        self, key: jax.Array, shape: tuple[int, int], axes: tuple[str, str], init: Initializer = _dense_init
    ) -> None:
        self.kernel = _parameter(named_key(key, "kernel"), init, shape, axes)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.dot(x, self.kernel[...].astype(x.dtype))


class RMSNorm(nnx.Module):
    """T5's layer norm: divides by the root mean square, subtracts nothing, adds nothing. Statistics in float32."""

    def __init__(self, features: int) -> None:
        self.scale = nnx.Param(jnp.ones((features,), jnp.float32), axes=("embed",))

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        mean_square = jnp.mean(lax.square(x32), axis=-1, keepdims=True)
        return (x32 * lax.rsqrt(mean_square + 1e-6)).astype(x.dtype) * self.scale[...].astype(x.dtype)


class Embed(nnx.Module):
    """Token embedding [V, D], not scaled; `attend` is the tied output matrix."""

    def __init__(self, key: jax.Array, vocab_size: int, features: int) -> None:
        self.embedding = _parameter(
            named_key(key, "embedding"), _embedding_init, (vocab_size, features), ("vocab", "embed")
        )

    def __call__(self, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """[...] int32 -> [..., D] in dtype."""
        # rows are gathered in float32 and cast afterwards, so that their gradients are summed in float32
        return jnp.take(self.embedding[...], ids, axis=0, mode="clip").astype(dtype)

    def attend(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., V] float32: inner products with every row."""
        return jnp.dot(x.astype(jnp.float32), self.embedding[...].T)


def relative_position_bucket(
    relative_position: np.ndarray, bidirectional: bool, num_buckets: int, max_distance: int
) -> np.ndarray:
    """T5's bucket of key position minus query position; int32, same shape.

    Half of the buckets of a direction stand for one distance each; the others grow logarithmically up to
    max_distance and the last holds everything beyond. A decoder (not bidirectional) looks only backwards and puts
    all distances ahead into bucket 0. float32 as in T5X: in float64 a few distances fall into other buckets.
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


class RelativePositionBias(nnx.Module):
    """Bias of attention logits by bucketed distance, one table [H, buckets] for all layers of a stack."""

    def __init__(self, key: jax.Array, config: T5Config, bidirectional: bool) -> None:
        self.bidirectional = bidirectional
        self.num_buckets = config.relative_attention_num_buckets
        self.max_distance = config.relative_attention_max_distance
        self.rel_embedding = _parameter(
            named_key(key, "rel_embedding"),
            _position_init,
            (config.num_heads, self.num_buckets),
            ("heads", "relpos_buckets"),
        )

    def __call__(self, queries: int, keys: int) -> jax.Array:
        """[1, H, queries, keys] float32."""
        # one value per distance, key - query in [-(queries-1), keys-1]
        distances = np.arange(-(queries - 1), keys, dtype=np.int32)
        buckets = relative_position_bucket(distances, self.bidirectional, self.num_buckets, self.max_distance)
        one_hot = jnp.asarray(buckets[None, :] == np.arange(self.num_buckets)[:, None], jnp.float32)
        by_distance = jnp.dot(self.rel_embedding[...], one_hot, precision=lax.Precision.HIGHEST)
        return _toeplitz(by_distance, queries, keys)[None]


def _toeplitz(by_distance: jax.Array, queries: int, keys: int) -> jax.Array:
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


@jax.custom_vjp
def add_shared_bias(logits: jax.Array, bias: jax.Array) -> jax.Array:
    """logits [B, H, Q, S] + bias [1, H, Q, S].

    The gradient of the bias is a sum over the batch, written as a product with a row of ones: on CPUs that reads each
    gradient once, where XLA's reduction over the first axis takes thirty times as long.
    """
    return logits + bias


def _add_shared_bias_forward(logits: jax.Array, bias: jax.Array) -> tuple[jax.Array, None]:
    return logits + bias, None


def _add_shared_bias_backward(_: None, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    B = gradient.shape[0]
    ones = jnp.ones((1, B), gradient.dtype)
    summed = jnp.einsum("ob,bhqs->ohqs", ones, gradient, precision=lax.Precision.HIGHEST)
    return gradient, summed


add_shared_bias.defvjp(_add_shared_bias_forward, _add_shared_bias_backward)


class Attention(nnx.Module):
    """Multi-head attention without biases; keys and values come from `project_keys_values`, so they can be cached."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        D, H, K = config.emb_dim, config.num_heads, config.head_dim
        self.num_heads = H
        self.head_dim = K
        self.float32_logits = config.float32_attention_logits

        # the attention logits' division by sqrt(K) is in the initial queries
        def query_init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
            return _attention_init(key, shape, dtype) / math.sqrt(K)

        self.query = Dense(named_key(key, "query"), (D, H * K), ("embed", "joined_kv"), query_init)
        self.key = Dense(named_key(key, "key"), (D, H * K), ("embed", "joined_kv"), _attention_init)
        self.value = Dense(named_key(key, "value"), (D, H * K), ("embed", "joined_kv"), _attention_init)
        self.out = Dense(named_key(key, "out"), (H * K, D), ("joined_kv", "embed"), _attention_init)

    def _split_heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], self.num_heads, self.head_dim)

    def project_keys_values(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[B, S, D] -> keys and values, each [B, S, H, K]."""
        return self._split_heads(self.key(x)), self._split_heads(self.value(x))

    def __call__(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        mask_bias: jax.Array | None,
        position_bias: jax.Array | None,
        dropout: Dropout,
    ) -> jax.Array:
        """x [B, Q, D], keys and values [B, S, H, K] -> [B, Q, D].

        mask_bias: 0 or MASKED, broadcast to [B, H, Q, S]; position_bias: [1, H, Q, S]; both float32.
        """
        queries = self._split_heads(self.query(x))
        if self.float32_logits:
            queries, keys = queries.astype(jnp.float32), keys.astype(jnp.float32)
        logits = jnp.einsum("bqhk,bshk->bhqs", queries, keys)
        # from here to the weights in float32: it costs nothing where it is fused with the softmax, and the gradient of
        # the position biases, a sum over all rows, loses nothing
        logits = logits.astype(jnp.float32)
        if position_bias is not None:
            logits = add_shared_bias(logits, position_bias)
        if mask_bias is not None:
            logits = logits + mask_bias
        weights = dropout(jax.nn.softmax(logits).astype(x.dtype))
        mixed = jnp.einsum("bhqs,bshk->bqhk", weights, values)
        return self.out(mixed.reshape(*mixed.shape[:-2], self.num_heads * self.head_dim))


class Mlp(nnx.Module):
    """act_0(x wi_0) * act_1(x wi_1) ... wo; with one activation the matrix is called wi."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        D, F = config.emb_dim, config.mlp_dim
        single = len(config.mlp_activations) == 1
        self.branches = tuple(
            ("wi" if single else f"wi_{index}", activation) for index, activation in enumerate(config.mlp_activations)
        )
        for name, _ in self.branches:
            setattr(self, name, Dense(named_key(key, name), (D, F), ("embed", "mlp")))
        self.wo = Dense(named_key(key, "wo"), (F, D), ("mlp", "embed"))

    def __call__(self, x: jax.Array, dropout: Dropout) -> jax.Array:
        """[B, T, D] -> [B, T, D]."""
        hidden: jax.Array | None = None
        for name, activation in self.branches:
            branch = _ACTIVATIONS[activation](getattr(self, name)(x))
            hidden = branch if hidden is None else hidden * branch
        assert hidden is not None
        return self.wo(dropout(hidden))
