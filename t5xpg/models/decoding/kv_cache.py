"""Decoding position by position: the cache that is kept between positions, and the logits of one position.

One query per row reads all keys and values of the row, and reading them takes most of the time. They are stored in the
order of reading: keys [B, H, K, S], summed over K for many S at once, and values [B, H, S, K], summed over S for many
K. From [B, S, H, K], XLA copies all of them into another order at every position, which takes ten times as long.

All continuations of a row share one source, whose keys and values they read together: the encoder's output or, for a
decoder alone, the prompt (see `prompt_decoder`). A prompt and the continuation's own positions share one softmax.
Each sample keeps the keys and values of its own positions. A beam can become the continuation of another beam, so the
beams of a row keep theirs in one pool, and a table says which positions of the pool are the past of each beam. Every
beam reads the whole pool, with all but its own past masked: there is more to sum, but no position is ever moved. On
CPUs this takes a tenth to a half of the time of moving them (a gather of the whole cache at every position).
Shapes: B batch, N beams or samples (1 without an axis for them), S source length, T target length, D emb, H heads, K
head_dim, V vocab.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from t5xpg.models.attention import Attention, repeat_heads, soft_cap
from t5xpg.models.attention.biases import as_bias
from t5xpg.models.attention.geometry import has_window, rotations, select_kind
from t5xpg.models.attention.relative_positions import RelativePositionBias
from t5xpg.models.attention.rotary import Rotation
from t5xpg.models.layers import OFF, Embed
from t5xpg.models.stacks import Decoder, DecoderLayer, DecoderOnly, Layer, apply_norm, feed_forward, residual

# "layers": for each, "source_keys" [B, H, K, S], "source_values" [B, H, S, K], "self_keys" [B, N, H, K, T],
# "self_values" [B, N, H, T, K]. For reordered beams: [B, H, K, T * N] and [B, H, T * N, K], position t of beam n at
# t * N + n, and "ancestors" [B, N, T] int32: the beam at position t that beam n descends from, or -1.
# "by_distance": [H, S + 2T - 1] or [H, 2T - 1] float32, the bias of every distance, first that of last query and first
# key (in each layer, if layers have their own tables).
# "source_bias": [B, 1, 1, S] float32 for an encoder's output, or "last" [B] int32, the position of a prompt's last
# token. "first": [B] int32, the decoder's first position, where that is not 0. "recent": [B, N, C] or [B, C] int32, for
# n-grams: the C inputs before this position, and 0 before the first one.
Cache = dict[str, Any]
LayerCache = dict[str, jax.Array]
# `source_keys_values` of each layer; and for all layers "source_bias" or "last", and "first" or "recent" [B, C]
SourceCache = tuple[dict[str, LayerCache], LayerCache]


def init_cache(
    decoder: Decoder | DecoderOnly,
    source: Callable[[jax.Array], SourceCache],
    tokens: jax.Array,
    length: int,
    *,
    rows: int | None,
    beams: int | None,
    reordered: bool,
) -> Cache:
    """The cache before the first of `length` positions. rows, beams, reordered: see `decoding.protocol.Decodable`.

    source: a function from tokens [b, S] to their part of the cache.
    """
    B, N = tokens.shape[0], beams or 1
    part = B if rows is None else max(n for n in range(1, min(B, rows) + 1) if B % n == 0)
    if part == B:
        layers, shared = source(tokens)
    else:
        parts = lax.map(source, tokens.reshape(B // part, part, tokens.shape[1]))
        layers, shared = jax.tree.map(lambda x: x.reshape(B, *x.shape[2:]), parts)
    source_length = next(iter(layers.values()))["source_keys"].shape[-1] if "last" in shared else 0

    def empty_self_cache(source_values: jax.Array) -> LayerCache:
        _, H, _, K = source_values.shape
        lead, places = ((B, H), length * N) if reordered else ((B, N, H), length)
        empty = functools.partial(jnp.zeros, dtype=source_values.dtype)
        return {"self_keys": empty((*lead, K, places)), "self_values": empty((*lead, places, K))}

    def by_distance(relpos_bias: RelativePositionBias | None) -> LayerCache:
        if relpos_bias is None:
            return {}
        return {"by_distance": relpos_bias.table(bidirectional=False).by_distance(source_length + length, length)}

    if context := decoder.config.ngram_context:
        recent = shared.get("recent", jnp.zeros((B, context), jnp.int32))
        shared |= {"recent": recent if beams is None else jnp.repeat(recent[:, None], N, axis=1)}
    return {
        "layers": {
            name: layers[name] | empty_self_cache(layers[name]["source_values"]) | by_distance(layer.relpos_bias)
            for name, layer in decoder.named_layers()
        },
        **shared,
        **by_distance(decoder.relpos_bias),
        **({"ancestors": jnp.full((B, N, length), -1, jnp.int32)} if reordered else {}),
    }


def source_keys_values(attention: Attention, x: jax.Array, rotation: Rotation | None = None) -> LayerCache:
    """The cached keys and values of a source x [B, S, D], as a layer reads it. rotation: of the source's positions."""
    keys, values = attention.project_keys_values(x, rotation)
    return {"source_keys": jnp.transpose(keys, (0, 2, 3, 1)), "source_values": jnp.transpose(values, (0, 2, 1, 3))}


def decode_step(
    decoder: Decoder | DecoderOnly, embed: Embed, cache: Cache, tokens: jax.Array, step: jax.Array
) -> tuple[jax.Array, Cache]:
    """tokens [B] or [B, N], the inputs at position `step` -> their logits [..., V] float32, and the cache with them."""
    several = tokens.ndim == 2
    if "ancestors" in cache:  # each beam is its own ancestor at this position
        B, N, _ = cache["ancestors"].shape
        themselves = jnp.broadcast_to(jnp.arange(N, dtype=jnp.int32)[:, None], (B, N, 1))
        cache = cache | {"ancestors": lax.dynamic_update_slice_in_dim(cache["ancestors"], themselves, step, axis=2)}
    x = tokens[..., None]
    if "recent" in cache:
        x = jnp.concatenate([cache["recent"], x], axis=-1)
        cache = cache | {"recent": x[..., 1:]}
    x = embed(x, decoder.dtype)[..., -1, :]
    # a single query per source of an encoder has no axis N: with that axis, XLA adds up in another order
    has_axis = several or isinstance(decoder, DecoderOnly)
    x = x[:, None] if has_axis and not several else x
    config, layers = decoder.config, {}
    first = next((cache[name] for name in ("first", "last") if name in cache), None)
    position = step if first is None else (first + step).reshape(-1, *[1] * (x.ndim - 2))
    layer_rotations = rotations(config, position)
    shared = functools.cache(functools.partial(_query_positions, cache, cache, step))
    for index, (name, layer) in enumerate(decoder.named_layers()):
        own_cache = cache["layers"][name]
        behind = config.windows.decoder if has_window(config, index) else None
        positions = _query_positions(cache, own_cache, step, behind) if "by_distance" in own_cache else shared(behind)
        rotation = select_kind(config, layer_rotations, index)
        x, layers[name] = _layer_step(layer, x, own_cache, step, positions, rotation)
    logits = decoder.to_logits(embed, decoder.decoder_norm(x))
    return logits[:, 0] if has_axis and not several else logits, cache | {"layers": layers}


def reorder(cache: Cache, parents: jax.Array) -> Cache:
    """The cache in which beam n of a row continues the former beam parents[:, n]. parents: [B, N] int32."""
    by_beam = {name: cache[name] for name in ("ancestors", "recent") if name in cache}
    moved = {name: jnp.take_along_axis(x, parents[..., None], axis=1, mode="clip") for name, x in by_beam.items()}
    return cache | moved


class _Positions(NamedTuple):
    """For one query: its biases with the source's keys, [B, 1 or H, 1, S], and with its own keys,
    [1 or B, 1 or H, 1 or N, T or T * N]."""

    source_bias: jax.Array
    own_bias: jax.Array


def _query_positions(cache: Cache, tables: LayerCache, step: jax.Array, behind: int | None = None) -> _Positions:
    """For the query at `step`. tables: the dict of "by_distance". behind: the positions back that it sees; None: all.

    A prompt's last token does not belong to the source: it is the input of step 0.
    """
    layer, ancestors = next(iter(cache["layers"].values())), cache.get("ancestors")
    by_distance = tables.get("by_distance")
    T = layer["self_keys"].shape[-1] if ancestors is None else ancestors.shape[-1]
    zero_place = 0 if by_distance is None else by_distance.shape[-1] - T  # of distance 0
    positions = jnp.arange(T, dtype=jnp.int32)
    own_bias = jnp.zeros((1, 1, 1, T), jnp.float32)
    if by_distance is not None:
        own_bias = lax.dynamic_slice_in_dim(by_distance, zero_place - step, T, axis=1)[None, :, None]
    if behind is not None:
        own_bias = own_bias + as_bias(step - positions <= behind)
    if ancestors is None:
        own_bias = own_bias + as_bias(positions <= step)
    else:
        B, N, _ = ancestors.shape
        visible = as_bias(ancestors[..., None] == jnp.arange(N, dtype=jnp.int32)).reshape(B, 1, N, T * N)
        own_bias = jnp.repeat(own_bias, N, axis=-1) + visible
    if "source_bias" in cache:
        return _Positions(cache["source_bias"], own_bias)
    last, positions = cache["last"][:, None], jnp.arange(layer["source_keys"].shape[-1], dtype=jnp.int32)
    distances = jnp.maximum(last + step - positions, 0)
    places, visible = zero_place - distances, positions < last
    source = as_bias(visible if behind is None else visible & (distances <= behind))[:, None]
    if by_distance is not None:
        source = jnp.swapaxes(jnp.take(by_distance, places, axis=1, mode="clip"), 0, 1) + source
    return _Positions(source[:, :, None], own_bias)


def _layer_step(
    layer: Layer, x: jax.Array, cache: LayerCache, step: jax.Array, positions: _Positions, rotation: Rotation | None
) -> tuple[jax.Array, LayerCache]:
    """x [B, N, D] or [B, D] -> the same, and the layer's cache with this position in it. rotation: of the position."""
    y = apply_norm(layer, "pre", "self_attention", x)
    key, value = layer.self_attention.project_keys_values(y, rotation)
    keys, values, place = cache["self_keys"], cache["self_values"], step
    if keys.ndim == 4:  # a pool: [B, N, H, K] goes to N places of it
        key, value, place = jnp.transpose(key, (0, 2, 3, 1)), jnp.swapaxes(value, 1, 2), step * key.shape[1]
    else:
        shape = (*keys.shape[:3], -1)  # [B, N, H, K]
        key, value = key.reshape(shape)[..., None], value.reshape(shape)[..., None, :]
    keys = lax.dynamic_update_slice_in_dim(keys, key, place, axis=-1)
    values = lax.dynamic_update_slice_in_dim(values, value, place, axis=-2)
    source = cache["source_keys"], cache["source_values"], positions.source_bias
    own_positions = keys, values, positions.own_bias
    looks_apart = isinstance(layer, DecoderLayer) and not layer.is_merged
    attended = (own_positions,) if looks_apart else (source, own_positions)
    x = x + apply_norm(layer, "post", "self_attention", _attend(layer.self_attention, y, rotation, *attended))
    if isinstance(layer, DecoderLayer) and not layer.is_merged:
        source_rotation = rotation if layer.turns_source else None
        look = functools.partial(_attend, layer.encoder_decoder_attention)
        x = residual(layer, "cross_attention", x, lambda y: look(y, source_rotation, source), OFF)
    return feed_forward(layer, x, OFF), cache | {"self_keys": keys, "self_values": values}


def _attend(
    attention: Attention, x: jax.Array, rotation: Rotation | None, *sources: tuple[jax.Array, jax.Array, jax.Array]
) -> jax.Array:
    """The output of `Attention` for queries with keys from one or more places: x [B, N, D] or [B, D] -> the same.

    rotation: of the queries. sources: keys, values and bias. Keys [B, G, K, S] and values [B, G, S, K] are read by all
    N queries of a row; with an axis N after B, each query has its own. The bias is broadcast to [B, H, N, S], float32.
    It uses sums of products, not matrix products: each number of the cache is used once or by a few queries, head by
    head, and is still in the processor's cache for the next query. Matrix products of so few rows take several times as
    long on CPUs. The sums are float32, whatever the dtype: this costs nothing, because the time goes to memory.
    """

    def for_queries(cached: jax.Array) -> jax.Array:
        """Keys or values with the axes of queries, [B, H, N, ...] or [B, H, ...]; N is 1 where all read the same."""
        cached = repeat_heads(cached, attention.num_heads, axis=cached.ndim - 3)
        if x.ndim == 2:
            return cached if cached.ndim == 4 else cached[:, 0]
        return cached[:, :, None] if cached.ndim == 4 else jnp.swapaxes(cached, 1, 2)

    queries = attention.project_queries(x, rotation).astype(jnp.float32)
    queries = queries if x.ndim == 2 else jnp.swapaxes(queries, 1, 2)
    logits = [
        soft_cap(jnp.sum(queries[..., None] * for_queries(keys).astype(jnp.float32), axis=-2), attention.softcap)
        + (bias[:, :, 0] if x.ndim == 2 else bias)
        for keys, _, bias in sources
    ]
    dtype = sources[0][1].dtype
    weights = jax.nn.softmax(jnp.concatenate(logits, axis=-1)).astype(dtype).astype(jnp.float32)
    parts, start = [], 0
    for part_logits, (_, values, _) in zip(logits, sources, strict=True):
        part = lax.slice_in_dim(weights, start, start + part_logits.shape[-1], axis=-1)
        parts.append(jnp.sum(part[..., None] * for_queries(values).astype(jnp.float32), axis=-2))
        start += part_logits.shape[-1]
    mixed = functools.reduce(jnp.add, parts).astype(x.dtype)
    mixed = mixed if x.ndim == 2 else jnp.swapaxes(mixed, 1, 2)
    return attention.out(mixed.reshape(*mixed.shape[:-2], -1))
