"""The decoder position by position: what is kept between positions, and the logits of one.

One query for each row reads all keys and values that the row has, so reading them takes the time. They lie as they are
read: keys [B, H, K, S], to be added up over K for many S at once, and values [B, H, S, K], over S for many K. From
[B, S, H, K] XLA copies all of them into another order at every position, which takes ten times as long.
Shapes: B batch, S source length, T target length, D emb, H heads, K head_dim, V vocab.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from t5xpg.models.attention import Attention
from t5xpg.models.dropout import OFF
from t5xpg.models.layers import Embed
from t5xpg.models.masks import as_bias, visible_keys
from t5xpg.models.stacks import Decoder, DecoderLayer

# "layers": for each, "cross_keys" [B, H, K, S], "cross_values" [B, H, S, K], "self_keys" [B, H, K, T], "self_values"
# [B, H, T, K]; "cross_bias": [B, 1, S] float32; "position_bias": [T, 1, H, T] float32, of each query with all keys
Cache = dict[str, Any]
LayerCache = dict[str, jax.Array]
Encode = Callable[[jax.Array], jax.Array]


def init_cache(decoder: Decoder, encode: Encode, tokens: jax.Array, length: int, rows: int | None) -> Cache:
    """The cache before the first position, of the encoder's input tokens [B, S]; length: T.

    encode: [b, S] int32 -> the encoder's output [b, S, D]. rows: so many rows of the batch are encoded at a time (the
    largest divisor of B up to it), None for all of them.
    """

    def sources(tokens: jax.Array) -> dict[str, Any]:
        encoded = encode(tokens)
        return {name: _source_cache(layer, encoded) for name, layer in _layers(decoder)}

    B = tokens.shape[0]
    part = B if rows is None else max(n for n in range(1, min(B, rows) + 1) if B % n == 0)
    if part == B:
        layers = sources(tokens)
    else:
        parts = lax.map(sources, tokens.reshape(B // part, part, tokens.shape[1]))
        layers = jax.tree.map(lambda x: x.reshape(B, *x.shape[2:]), parts)
    return {
        "layers": {name: cache | _own_cache(cache["cross_values"], length) for name, cache in layers.items()},
        "cross_bias": as_bias(visible_keys(tokens))[:, 0],
        "position_bias": jnp.transpose(decoder.relpos_bias(length, length), (2, 0, 1, 3)),
    }


def decode_step(
    decoder: Decoder, embed: Embed, cache: Cache, tokens: jax.Array, step: jax.Array
) -> tuple[jax.Array, Cache]:
    """tokens [B], the input at position `step` -> logits [B, V] float32 of that position, and the cache with it."""
    length = cache["position_bias"].shape[0]
    position_bias = lax.dynamic_index_in_dim(cache["position_bias"], step, axis=0, keepdims=False)
    self_bias = position_bias + as_bias(jnp.arange(length, dtype=jnp.int32) <= step)
    x = embed(tokens, decoder.dtype)
    layers = {}
    for name, layer in _layers(decoder):
        x, layers[name] = _layer_step(layer, x, cache["layers"][name], step, self_bias, cache["cross_bias"])
    return decoder.to_logits(embed, decoder.decoder_norm(x)), cache | {"layers": layers}


def _layers(decoder: Decoder) -> list[tuple[str, DecoderLayer]]:
    names = [f"layers_{index}" for index in range(decoder.num_layers)]
    return [(name, getattr(decoder, name)) for name in names]


def _source_cache(layer: DecoderLayer, encoded: jax.Array) -> LayerCache:
    """The keys and values of the layer's cross attention."""
    keys, values = layer.encoder_decoder_attention.project_keys_values(encoded)
    return {"cross_keys": jnp.transpose(keys, (0, 2, 3, 1)), "cross_values": jnp.transpose(values, (0, 2, 1, 3))}


def _own_cache(cross_values: jax.Array, length: int) -> LayerCache:
    """Room for the keys and values of the decoder's own positions."""
    B, H, _, K = cross_values.shape
    empty = functools.partial(jnp.zeros, dtype=cross_values.dtype)
    return {"self_keys": empty((B, H, K, length)), "self_values": empty((B, H, length, K))}


def _layer_step(
    layer: DecoderLayer, x: jax.Array, cache: LayerCache, step: jax.Array, self_bias: jax.Array, cross_bias: jax.Array
) -> tuple[jax.Array, LayerCache]:
    """x [B, D] -> [B, D], and the layer's cache with this position in it."""
    y = layer.pre_self_attention_layer_norm(x)
    key, value = layer.self_attention.project_keys_values(y)
    keys = lax.dynamic_update_slice_in_dim(cache["self_keys"], key[..., None], step, axis=3)
    values = lax.dynamic_update_slice_in_dim(cache["self_values"], value[:, :, None], step, axis=2)
    x = x + _attend(layer.self_attention, y, keys, values, self_bias)
    y = layer.pre_cross_attention_layer_norm(x)
    x = x + _attend(layer.encoder_decoder_attention, y, cache["cross_keys"], cache["cross_values"], cross_bias)
    x = x + layer.mlp(layer.pre_mlp_layer_norm(x), OFF)
    return x, cache | {"self_keys": keys, "self_values": values}


def _attend(attention: Attention, x: jax.Array, keys: jax.Array, values: jax.Array, bias: jax.Array) -> jax.Array:
    """What `Attention` gives for one query of each row: x [B, D] -> [B, D]. bias: broadcast to [B, H, S], float32.

    Sums of products rather than matrix products: each number of the cache is used once, and CPUs read faster so. They
    are added up in float32, whatever the dtype: that costs nothing while memory is waited for.
    """
    queries = attention.split_heads(attention.query(x)).astype(jnp.float32)
    logits = jnp.sum(queries[..., None] * keys.astype(jnp.float32), axis=2) + bias
    weights = jax.nn.softmax(logits).astype(values.dtype).astype(jnp.float32)
    mixed = jnp.sum(weights[..., None] * values.astype(jnp.float32), axis=2).astype(x.dtype)
    return attention.out(mixed.reshape(*mixed.shape[:-2], -1))
