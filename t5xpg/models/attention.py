"""T5's attention: no scaling of the logits (that is folded into the initial queries), biases of positions and masks.

Over long inputs the logits of all pairs of positions are what memory goes to. By chunks of queries
(`T5Config.attention_chunk_size`), a part of them exists at a time, in the forward and in the backward pass.
Shapes: B batch, S keys, Q queries, D emb, H heads, K head_dim.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.nn import initializers

from t5xpg.models.attention_chunks import attend_by_chunks
from t5xpg.models.biases import ChunkedBias, WholeBias
from t5xpg.models.config import T5Config
from t5xpg.models.dropout import Dropout
from t5xpg.models.keys import named_key
from t5xpg.models.layers import Dense, Initializer

_attention_init: Initializer = initializers.variance_scaling(1.0, "fan_in", "normal")


@functools.cache
def _query_init(head_dim: int) -> Initializer:
    """The attention logits' division by sqrt(K) is in the initial queries."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
        return _attention_init(key, shape, dtype) / math.sqrt(head_dim)

    return init


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
        self.query = Dense(named_key(key, "query"), (D, H * K), ("embed", "joined_kv"), _query_init(K))
        self.key = Dense(named_key(key, "key"), (D, H * K), ("embed", "joined_kv"), _attention_init)
        self.value = Dense(named_key(key, "value"), (D, H * K), ("embed", "joined_kv"), _attention_init)
        self.out = Dense(named_key(key, "out"), (H * K, D), ("joined_kv", "embed"), _attention_init)

    def split_heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], self.num_heads, self.head_dim)

    def project_keys_values(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[B, S, D] -> keys and values, each [B, S, H, K]."""
        return self.split_heads(self.key(x)), self.split_heads(self.value(x))

    def __call__(
        self, x: jax.Array, keys: jax.Array, values: jax.Array, bias: WholeBias | ChunkedBias, dropout: Dropout
    ) -> jax.Array:
        """x [B, Q, D], keys and values [B, S, H, K] -> [B, Q, D]."""
        queries = self.split_heads(self.query(x))
        if self.float32_logits:
            queries, keys = queries.astype(jnp.float32), keys.astype(jnp.float32)
        if isinstance(bias, WholeBias):
            mixed = attend_whole(queries, keys, values, bias, dropout)
        else:
            mixed = attend_by_chunks(queries, keys, values, bias, dropout)
        return self.out(mixed.reshape(*mixed.shape[:-2], self.num_heads * self.head_dim))


def attend_whole(
    queries: jax.Array, keys: jax.Array, values: jax.Array, bias: WholeBias, dropout: Dropout
) -> jax.Array:
    """queries [B, Q, H, K], keys and values [B, S, H, K] -> the values mixed by attention [B, Q, H, K]."""
    logits = jnp.einsum("bqhk,bshk->bhqs", queries, keys)
    # from here to the weights in float32: it costs nothing where it is fused with the softmax, and the gradient of
    # the position biases, a sum over all rows, loses nothing
    logits = logits.astype(jnp.float32)
    if bias.position is not None:
        logits = add_shared_bias(logits, bias.position)
    if bias.mask is not None:
        logits = logits + bias.mask
    # the softmax's division comes after the mixing, where there are K numbers for each query instead of S: a pass less
    # over all pairs of positions in the forward pass, and one in the backward pass
    largest = lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    weights = jnp.exp(logits - largest)
    if values.dtype == jnp.float16:  # whose largest number, 65,504, the sums of undivided weights can pass
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        return jnp.einsum("bhqs,bshk->bqhk", dropout(weights.astype(values.dtype)), values)
    total = jnp.swapaxes(jnp.sum(weights, axis=-1), 1, 2)[..., None]  # [B, Q, H, 1]
    mixed = jnp.einsum("bhqs,bshk->bqhk", dropout(weights.astype(values.dtype)), values)
    return (mixed.astype(jnp.float32) / total).astype(values.dtype)
