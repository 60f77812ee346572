"""The decoder position by position: what is kept between positions, and the logits of one.

One query for each row reads all keys and values that the row has, so reading them takes the time. They lie as they are
read: keys [B, H, K, S], to be added up over K for many S at once, and values [B, H, S, K], over S for many K. From
[B, S, H, K] XLA copies all of them into another order at every position, which takes ten times as long.

Beams (or samples) of a row have one source, whose keys and values they read together: nothing is copied for each.
Samples keep keys and values of their own positions. Beams, which turn into continuations of each other, keep them in
one pool for the row, and a table says whose position of the pool each beam has gone through. Every beam looks at the
whole pool, and what is not of its own past is masked: more to add up, but no position is ever moved. Beside moving
them (a gather of the whole cache at every position) this takes a tenth to a half of the time on CPUs.
Shapes: B batch, N beams or samples, S source length, T target length, D emb, H heads, K head_dim, V vocab.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from t5xpg.models.attention import Attention
from t5xpg.models.biases import as_bias, visible_keys
from t5xpg.models.layers import OFF, Embed
from t5xpg.models.positions import RelativePositionBias
from t5xpg.models.stacks import Decoder, DecoderLayer

# "layers": for each, "cross_keys" [B, H, K, S], "cross_values" [B, H, S, K], "self_keys" [B, H, K, T], "self_values"
# [B, H, T, K]; "cross_bias": [B, 1, S] float32; "position_bias": [T, 1, H, T] float32, of each query with all keys (of
# each layer, where every layer has its own).
# Of samples "self_keys" [B, N, H, K, T], "self_values" [B, N, H, T, K]. Of beams [B, H, K, T * N] and [B, H, T * N, K],
# beam n's position t at t * N + n, and "ancestors" [B, N, T] int32: the beam that was at t what beam n now is, or -1.
Cache = dict[str, Any]
LayerCache = dict[str, jax.Array]
Encode = Callable[[jax.Array], jax.Array]


def init_cache(
    decoder: Decoder,
    encode: Encode,
    tokens: jax.Array,
    length: int,
    rows: int | None,
    beams: int | None = None,
    reordered: bool = False,
) -> Cache:
    """The cache before the first position, of the encoder's input tokens [B, S]; length: T.

    encode: [b, S] int32 -> the encoder's output [b, S, D]. rows: so many rows of the batch are encoded at a time (the
    largest divisor of B up to it), None for all of them. beams: N, None for one without an axis for it. reordered:
    whether `reorder` will be called.
    """

    def sources(tokens: jax.Array) -> dict[str, Any]:
        encoded = encode(tokens)
        return {name: _source_cache(layer, encoded) for name, layer in decoder.named_layers()}

    layers = by_rows(sources, tokens, rows)
    pooled = beams if reordered else None
    own = functools.partial(own_cache, length=length * (pooled or 1), copies=None if pooled else beams)
    cache = {
        "layers": {
            name: layers[name] | own(layers[name]["cross_values"]) | _position_bias(layer.relpos_bias, length)
            for name, layer in decoder.named_layers()
        },
        "cross_bias": as_bias(visible_keys(tokens))[:, 0],
        **_position_bias(decoder.relpos_bias, length),
    }
    return cache | ({"ancestors": jnp.full((tokens.shape[0], pooled, length), -1, jnp.int32)} if pooled else {})


def _position_bias(table: RelativePositionBias | None, length: int) -> dict[str, jax.Array]:
    """Of a stack or of a layer; nothing of one that has no table."""
    return {} if table is None else {"position_bias": jnp.transpose(table(length, length), (2, 0, 1, 3))}


def by_rows(function: Callable[[jax.Array], Any], tokens: jax.Array, rows: int | None) -> Any:
    """function(tokens [B, S]), computed for so many rows at a time: the largest divisor of B up to `rows`.

    rows: None for all of them. function: gives a tree of arrays [b, ...] of tokens [b, S].
    """
    B = tokens.shape[0]
    part = B if rows is None else max(n for n in range(1, min(B, rows) + 1) if B % n == 0)
    if part == B:
        return function(tokens)
    parts = lax.map(function, tokens.reshape(B // part, part, tokens.shape[1]))
    return jax.tree.map(lambda x: x.reshape(B, *x.shape[2:]), parts)


def decode_step(
    decoder: Decoder, embed: Embed, cache: Cache, tokens: jax.Array, step: jax.Array
) -> tuple[jax.Array, Cache]:
    """tokens [B] or [B, N], the inputs at position `step` -> their logits [..., V] float32, and the cache with them."""
    cache = advance(cache, step)

    def own_bias(whole: jax.Array) -> jax.Array:
        """Of the query at `step`: [T, 1, H, T] -> [1, H, T], or of beams [B, H, N, T * N]."""
        bias = lax.dynamic_index_in_dim(whole, step, axis=0, keepdims=False)
        if "ancestors" in cache:
            return jnp.repeat(bias, tokens.shape[1], axis=-1)[:, :, None] + own_visible(cache["ancestors"])
        return bias + as_bias(jnp.arange(whole.shape[0], dtype=jnp.int32) <= step)

    shared = own_bias(cache["position_bias"]) if "position_bias" in cache else None
    x = embed(tokens, decoder.dtype)
    layers = {}
    for name, layer in decoder.named_layers():
        of_layer = cache["layers"][name]
        bias = own_bias(of_layer["position_bias"]) if shared is None else shared
        x, layers[name] = _layer_step(layer, x, of_layer, step, bias, cache["cross_bias"])
    return decoder.to_logits(embed, decoder.decoder_norm(x)), cache | {"layers": layers}


def reorder(cache: Cache, parents: jax.Array) -> Cache:
    """The cache of beams that continue others: beam n what was beam parents[:, n]. parents: [B, N] int32."""
    return cache | {"ancestors": jnp.take_along_axis(cache["ancestors"], parents[..., None], axis=1, mode="clip")}


def advance(cache: Cache, step: jax.Array) -> Cache:
    """The cache with every beam in its table at position `step`, where each is its own ancestor."""
    if "ancestors" not in cache:
        return cache
    ancestors = cache["ancestors"]
    B, N, _ = ancestors.shape
    themselves = jnp.broadcast_to(jnp.arange(N, dtype=jnp.int32)[:, None], (B, N, 1))
    return cache | {"ancestors": lax.dynamic_update_slice_in_dim(ancestors, themselves, step, axis=2)}


def own_visible(ancestors: jax.Array) -> jax.Array:
    """[B, N, T] -> [B, 1, N, T * N] float32: 0 for the places of the pool that a beam has gone through."""
    B, N, T = ancestors.shape
    return as_bias(ancestors[..., None] == jnp.arange(N, dtype=jnp.int32)).reshape(B, 1, N, T * N)


def _source_cache(layer: DecoderLayer, encoded: jax.Array) -> LayerCache:
    """The keys and values of the layer's cross attention."""
    keys, values = layer.encoder_decoder_attention.project_keys_values(encoded)
    return {"cross_keys": jnp.transpose(keys, (0, 2, 3, 1)), "cross_values": jnp.transpose(values, (0, 2, 1, 3))}


def own_cache(cross_values: jax.Array, length: int, copies: int | None) -> LayerCache:
    """Room for the keys and values of the decoder's own positions, `copies` of them for each row."""
    B, H, _, K = cross_values.shape
    lead = (B, H) if copies is None else (B, copies, H)
    empty = functools.partial(jnp.zeros, dtype=cross_values.dtype)
    return {"self_keys": empty((*lead, K, length)), "self_values": empty((*lead, length, K))}


def _layer_step(
    layer: DecoderLayer, x: jax.Array, cache: LayerCache, step: jax.Array, self_bias: jax.Array, cross_bias: jax.Array
) -> tuple[jax.Array, LayerCache]:
    """x [B, D] or [B, N, D] -> the same, and the layer's cache with this position in it."""
    several = x.ndim == 3
    y = layer.pre_self_attention_layer_norm(x)
    own = remember(cache, *layer.self_attention.project_keys_values(y), step)
    attend = _attend_together if several and own["self_keys"].ndim == 4 else _attend
    x = x + attend(layer.self_attention, y, own["self_keys"], own["self_values"], self_bias)
    y = layer.pre_cross_attention_layer_norm(x)
    source = cache["cross_keys"], cache["cross_values"]
    if several:
        x = x + _attend_together(layer.encoder_decoder_attention, y, *source, cross_bias[:, :, None])
    else:
        x = x + _attend(layer.encoder_decoder_attention, y, *source, cross_bias)
    x = x + layer.mlp(layer.pre_mlp_layer_norm(x), OFF)
    return x, cache | own


def remember(cache: LayerCache, key: jax.Array, value: jax.Array, step: jax.Array) -> LayerCache:
    """The layer's own keys and values with those of position `step` in them: key and value [..., H, K]."""
    keys, values = cache["self_keys"], cache["self_values"]
    if key.ndim == keys.ndim:  # a pool: [B, N, H, K] goes to N places of it
        key, value, step = jnp.transpose(key, (0, 2, 3, 1)), jnp.swapaxes(value, 1, 2), step * key.shape[1]
    else:
        key, value = key[..., None], value[..., None, :]
    last = keys.ndim - 1
    return {
        "self_keys": lax.dynamic_update_slice_in_dim(keys, key, step, axis=last),
        "self_values": lax.dynamic_update_slice_in_dim(values, value, step, axis=last - 1),
    }


def _attend(attention: Attention, x: jax.Array, keys: jax.Array, values: jax.Array, bias: jax.Array) -> jax.Array:
    """What `Attention` gives for one query with keys of its own: x [..., D], keys [..., H, K, S] -> [..., D].

    bias: broadcast to [..., H, S], float32.
    Sums of products rather than matrix products: each number of the cache is used once, and CPUs read faster so. They
    are added up in float32, whatever the dtype: that costs nothing while memory is waited for.
    """
    queries = attention.split_heads(attention.query(x)).astype(jnp.float32)
    logits = jnp.sum(queries[..., None] * keys.astype(jnp.float32), axis=-2) + bias
    weights = jax.nn.softmax(logits).astype(values.dtype).astype(jnp.float32)
    mixed = jnp.sum(weights[..., None] * values.astype(jnp.float32), axis=-2).astype(x.dtype)
    return attention.out(mixed.reshape(*mixed.shape[:-2], -1))


def _attend_together(
    attention: Attention, x: jax.Array, keys: jax.Array, values: jax.Array, bias: jax.Array
) -> jax.Array:
    """The same for several queries with the same keys: x [B, N, D], keys [B, H, K, S] -> [B, N, D].

    bias: broadcast to [B, H, N, S], float32. Head by head, so that the keys that one query has read are still in the
    processor's cache for the next. Matrix products of so few rows take several times as long on CPUs.
    """
    queries = jnp.swapaxes(attention.split_heads(attention.query(x)), 1, 2).astype(jnp.float32)
    logits = jnp.sum(queries[..., None] * keys.astype(jnp.float32)[:, :, None], axis=-2) + bias
    weights = jax.nn.softmax(logits).astype(values.dtype).astype(jnp.float32)
    mixed = jnp.sum(weights[..., None] * values.astype(jnp.float32)[:, :, None], axis=-2)
    mixed = jnp.swapaxes(mixed.astype(x.dtype), 1, 2)
    return attention.out(mixed.reshape(*mixed.shape[:-2], -1))
