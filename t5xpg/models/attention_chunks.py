"""Attention by chunks of queries: the weights of a part of the pairs exist at a time, forward and backward.

The backward pass makes a chunk's weights again from its queries and from what their softmax was divided by (Dao et al.
2022, FlashAttention, with chunks of queries only): one product more than the six of attention. It is written out, as
differentiation would have XLA copy every chunk's pairs, transposed, for the gradients of keys and values; here these
are made transposed themselves, [K, S], of pairs as they lie.
Shapes: B batch, C queries of a chunk, S keys, H heads, K head_dim.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from t5xpg.models.biases import ChunkedBias, join_queries, split_queries
from t5xpg.models.dropout import Dropout


class _Chunk(NamedTuple):
    """Of one chunk, in loops of all: its number, queries [B, H, C, K], segments [B, C], and what backward needs.

    mixed: the result [B, H, C, K]; largest, total: of the softmax, [B, H, C, 1] float32; gradient: of the result.
    """

    number: jax.Array
    queries: jax.Array
    segments: jax.Array | None
    mixed: jax.Array | None = None
    largest: jax.Array | None = None
    total: jax.Array | None = None
    gradient: jax.Array | None = None


def attend_by_chunks(
    queries: jax.Array, keys: jax.Array, values: jax.Array, bias: ChunkedBias, dropout: Dropout
) -> jax.Array:
    """queries [B, Q, H, K], keys and values [B, S, H, K] -> the values mixed by attention [B, Q, H, K]."""
    B, S, H, _ = keys.shape
    # a key's weights are dropped for all queries alike: as well its values can be
    kept = dropout(jnp.ones((B, H, 1, S), jnp.float32))
    if dropout.active:
        values = values * jnp.transpose(kept, (0, 3, 1, 2)).astype(values.dtype)
    chunks = jnp.swapaxes(split_queries(queries, bias.size), 2, 3)
    mixed = _attend(chunks, jnp.transpose(keys, (0, 2, 3, 1)), jnp.transpose(values, (0, 2, 3, 1)), bias)
    return join_queries(jnp.swapaxes(mixed, 2, 3), queries.shape[1])


@jax.custom_vjp
def _attend(queries: jax.Array, keys: jax.Array, values: jax.Array, bias: ChunkedBias) -> jax.Array:
    """queries [chunks, B, H, C, K], keys and values [B, H, K, S] -> [chunks, B, H, C, K]."""
    return _forward(queries, keys, values, bias)[0]


_Kept = tuple[jax.Array, jax.Array, ChunkedBias, _Chunk]


def _forward(queries: jax.Array, keys: jax.Array, values: jax.Array, bias: ChunkedBias) -> tuple[jax.Array, _Kept]:
    rows = jnp.swapaxes(values, 2, 3)

    def attend(_: None, chunk: _Chunk) -> tuple[None, tuple[jax.Array, jax.Array, jax.Array]]:
        logits = _logits(chunk, keys, bias, bias.position(chunk.number))
        largest = jnp.max(logits, axis=-1, keepdims=True)
        weights = jnp.exp(logits - largest)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        if rows.dtype == jnp.float16:  # whose largest number, 65,504, the sums of undivided weights can pass
            mixed = jnp.einsum("bhqs,bhsk->bhqk", (weights / total).astype(rows.dtype), rows)
        else:
            mixed = jnp.einsum("bhqs,bhsk->bhqk", weights.astype(rows.dtype), rows).astype(jnp.float32) / total
        return None, (mixed.astype(rows.dtype), largest, total)

    chunks = _Chunk(jnp.arange(bias.number, dtype=jnp.int32), queries, bias.segments)
    mixed, largest, total = lax.scan(attend, None, chunks)[1]
    return mixed, (keys, values, bias, chunks._replace(mixed=mixed, largest=largest, total=total))


def _backward(kept: _Kept, gradient: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, ChunkedBias]:
    keys, values, bias, chunks = kept
    rows = jnp.swapaxes(keys, 2, 3)
    none = jnp.zeros(keys.shape, jnp.float32)

    def attend(sums: tuple[jax.Array, ...], chunk: _Chunk) -> tuple[tuple[jax.Array, ...], jax.Array]:
        of_keys, of_values, *of_table = sums
        assert chunk.mixed is not None and chunk.largest is not None and chunk.total is not None  # noqa: PT018
        assert chunk.gradient is not None
        position, to_table = None, None
        if bias.by_distance is not None:
            position, to_table = jax.vjp(lambda table: bias.position(chunk.number, table), bias.by_distance)
        weights = jnp.exp(_logits(chunk, keys, bias, position) - chunk.largest) / chunk.total
        of_weights = jnp.einsum("bhqk,bhks->bhqs", chunk.gradient, values).astype(jnp.float32)
        # the sum over keys of each weight times its gradient
        inner = jnp.sum(chunk.gradient.astype(jnp.float32) * chunk.mixed.astype(jnp.float32), axis=-1, keepdims=True)
        of_logits = weights * (of_weights - inner)
        if to_table is not None:
            # over the batch: a product with ones, as in `add_shared_bias`
            ones = jnp.ones((1, of_logits.shape[0]), jnp.float32)
            shared = jnp.einsum("ob,bhqs->ohqs", ones, of_logits, precision=lax.Precision.HIGHEST)
            of_table = [of_table[0] + to_table(shared)[0]]
        pairs = of_logits.astype(rows.dtype)
        of_queries = jnp.einsum("bhqs,bhsk->bhqk", pairs, rows)
        of_keys = of_keys + jnp.einsum("bhqk,bhqs->bhks", chunk.queries, pairs).astype(jnp.float32)
        weights = weights.astype(values.dtype)
        of_values = of_values + jnp.einsum("bhqk,bhqs->bhks", chunk.gradient, weights).astype(jnp.float32)
        return (of_keys, of_values, *of_table), of_queries

    start: tuple[jax.Array, ...] = (
        (none, none) if bias.by_distance is None else (none, none, jnp.zeros_like(bias.by_distance))
    )
    (of_keys, of_values, *of_table), of_queries = lax.scan(attend, start, chunks._replace(gradient=gradient))
    # integers have no gradients
    integers: Any = dict.fromkeys(("key_tokens", "segments", "key_segments", "prefix"))
    of_bias = dataclasses.replace(bias, **integers, by_distance=of_table[0] if of_table else None)
    return of_queries, of_keys.astype(keys.dtype), of_values.astype(values.dtype), of_bias


_attend.defvjp(_forward, _backward)


def _logits(chunk: _Chunk, keys: jax.Array, bias: ChunkedBias, position: jax.Array | None) -> jax.Array:
    """[B, H, C, S] float32, biases and masks added."""
    logits = jnp.einsum("bhqk,bhks->bhqs", chunk.queries, keys).astype(jnp.float32)
    if position is not None:
        logits = logits + position
    return logits + bias.mask(chunk.number, chunk.segments)
