"""A decoder-only model that continues prompts, position by position.

The prompts of a batch have different lengths, and `step` counts the tokens behind them. So the keys and values of a
prompt lie by themselves, once for all continuations of its row, those of the continuations beside them, and one softmax
is over both. As in `incremental`, keys lie as [B, H, K, S] and values as [B, H, S, K].

The last token of a prompt is the first that is put in: `init_cache` reads it with the others, because in a prefix that
sees all of itself they see it too; what it makes of them is kept, and it is masked there, for it comes as step 0 again.
Shapes: B batch, N beams or samples, P length of the prompts with the 0 before them, T length decoded, D emb, H heads,
K head_dim, V vocab.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from t5xpg.models.attention import Attention
from t5xpg.models.biases import Pairs, as_bias
from t5xpg.models.incremental import advance, by_rows, own_cache, own_visible, remember, reorder
from t5xpg.models.layers import OFF, Embed
from t5xpg.models.model import Model, Params
from t5xpg.models.positions import RelativePositionBias
from t5xpg.models.stacks import DecoderOnly, DecoderOnlyLayer, feed_forward, own_biases

# "layers": for each, "prompt_keys" [B, H, K, P], "prompt_values" [B, H, P, K], and the continuations' "self_keys" and
# "self_values" as in `incremental`, with N = 1 where there is no axis of beams. "last": [B] int32, the position of the
# prompt's last token. "by_distance": [H, P + T] float32, the bias of a key so many positions before its query (of each
# layer, where every layer has its own). Of beams "ancestors" as in `incremental`.
Cache = dict[str, Any]


@dataclass(frozen=True)
class PromptedModel:
    """What `t5xpg.models.decoding` needs, of a decoder-only model. All methods are pure.

    sees_itself: whether every position of a prompt sees all of it, as in a prefix LM; else those before it alone.
    """

    model: Model
    sees_itself: bool

    def init_cache(
        self,
        params: Params,
        inputs: jax.Array,
        max_decode_length: int,
        rows: int | None = None,
        beams: int | None = None,
        reordered: bool = False,
    ) -> Cache:
        """The cache before the first position behind the prompts [B, S] int32, padded with 0 at their ends.

        rows: how many prompts are read at a time, None for all. beams: how many continuations each has; None for one,
        without an axis of its own. reordered: whether `reorder_beams` will be called.
        """
        modules = self.model.with_parameters(params)
        decoder: DecoderOnly = modules.decoder
        read = functools.partial(_read, decoder, modules.token_embedder, self.sees_itself)
        B, T = inputs.shape[0], max_decode_length
        P = inputs.shape[1] + 1
        copies = None if reordered else beams or 1
        pooled = (beams or 1) if reordered else None
        layers = by_rows(read, inputs, rows)
        own = functools.partial(own_cache, length=T * (pooled or 1), copies=copies)
        cache: Cache = {
            "layers": {
                name: layers[name] | own(layers[name]["prompt_values"]) | _by_distance(layer.relpos_bias, P + T)
                for name, layer in decoder.named_layers()
            },
            "last": _lengths(inputs),
            **_by_distance(decoder.relpos_bias, P + T),
        }
        return cache | ({"ancestors": jnp.full((B, pooled, T), -1, jnp.int32)} if pooled else {})

    def first_tokens(self, inputs: jax.Array) -> jax.Array:
        """[B, S] -> [B] int32: the last token of each prompt; 0, with which every text begins, where it is empty."""
        return jnp.take_along_axis(_with_start(inputs), _lengths(inputs)[:, None], axis=1)[:, 0]

    def decode_step(self, params: Params, cache: Cache, tokens: jax.Array, step: jax.Array) -> tuple[jax.Array, Cache]:
        """Logits [B, V] or [B, N, V] float32 of what follows `tokens` [B] or [B, N], and the cache with them.

        step: int32 scalar, counting from 0 at the prompt's last token.
        """
        modules = self.model.with_parameters(params)
        decoder: DecoderOnly = modules.decoder
        several = tokens.ndim == 2
        cache = advance(cache, step)
        shared = _biases(cache, cache["by_distance"], step) if "by_distance" in cache else None
        x = modules.token_embedder(tokens if several else tokens[:, None], decoder.dtype)
        layers = {}
        for name, layer in decoder.named_layers():
            of_layer = cache["layers"][name]
            biases = _biases(cache, of_layer["by_distance"], step) if shared is None else shared
            x, layers[name] = _layer_step(layer, x, of_layer, step, *biases)
        logits = decoder.to_logits(modules.token_embedder, decoder.decoder_norm(x))
        return logits if several else logits[:, 0], cache | {"layers": layers}

    def reorder_beams(self, cache: Cache, parents: jax.Array) -> Cache:
        """The cache when beam n of a row continues what was beam parents[:, n]; parents: [B, N] int32."""
        return reorder(cache, parents)


def _with_start(inputs: jax.Array) -> jax.Array:
    """[B, S] -> [B, S + 1]: the 0 that every text begins with, before the prompt."""
    return jnp.pad(inputs, ((0, 0), (1, 0)))


def _lengths(inputs: jax.Array) -> jax.Array:
    """[B, S] -> [B] int32: up to the last token that is no padding."""
    positions = jnp.arange(1, inputs.shape[1] + 1, dtype=jnp.int32)
    return jnp.max(jnp.where(inputs != 0, positions, jnp.int32(0)), axis=1)


def _read(decoder: DecoderOnly, embed: Embed, sees_itself: bool, inputs: jax.Array) -> dict[str, dict[str, jax.Array]]:
    """The keys and values that each layer has of the prompts [b, S], with the 0 before them."""
    tokens = _with_start(inputs)
    P = tokens.shape[1]
    inside = (jnp.arange(P, dtype=jnp.int32) <= _lengths(inputs)[:, None]).astype(jnp.int32)
    pairs = Pairs(
        P, inside, None, None, is_causal=True, positions=decoder.relpos_bias, prefix=inside if sees_itself else None
    )
    bias_of = own_biases(pairs, decoder.chunk_size)
    x = embed(tokens, decoder.dtype)
    found = {}
    for name, layer in decoder.named_layers():
        keys, values = layer.self_attention.project_keys_values(layer.pre_self_attention_layer_norm(x))
        found[name] = {
            "prompt_keys": jnp.transpose(keys, (0, 2, 3, 1)),
            "prompt_values": jnp.transpose(values, (0, 2, 1, 3)),
        }
        x = layer(x, bias_of(layer), OFF)
    return found


def _by_distance(table: RelativePositionBias | None, length: int) -> dict[str, jax.Array]:
    """Of a stack or of a layer; nothing of one that has no table."""
    return {} if table is None else {"by_distance": jnp.flip(table.by_distance(length, 1), axis=1)}


def _biases(cache: Cache, by_distance: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """With the keys of the prompts, and with those of the continuations."""
    return _prompt_bias(cache, by_distance, step), _own_bias(cache, by_distance, step)


def _prompt_bias(cache: Cache, by_distance: jax.Array, step: jax.Array) -> jax.Array:
    """[B, H, 1, P] float32: of a query behind each prompt with its tokens before the last."""
    P = next(iter(cache["layers"].values()))["prompt_keys"].shape[-1]
    last, positions = cache["last"][:, None], jnp.arange(P, dtype=jnp.int32)
    near = jnp.take(by_distance, jnp.maximum(last + step - positions, 0), axis=1, mode="clip")
    return (jnp.swapaxes(near, 0, 1) + as_bias(positions < last)[:, None])[:, :, None]


def _own_bias(cache: Cache, by_distance: jax.Array, step: jax.Array) -> jax.Array:
    """[1 or B, H, 1 or N, T or T * N] float32: of the query at `step` with the continuations' keys."""
    pool = cache.get("ancestors")
    T = _own_length(cache)
    positions = jnp.arange(T, dtype=jnp.int32)
    bias = jnp.take(by_distance, jnp.maximum(step - positions, 0), axis=1, mode="clip")[None, :, None]
    if pool is None:
        return bias + as_bias(positions <= step)
    return jnp.repeat(bias, pool.shape[1], axis=-1) + own_visible(pool)


def _own_length(cache: Cache) -> int:
    """T."""
    length: int = next(iter(cache["layers"].values()))["self_keys"].shape[-1]
    return length // cache["ancestors"].shape[1] if "ancestors" in cache else length


def _layer_step(
    layer: DecoderOnlyLayer,
    x: jax.Array,
    cache: dict[str, jax.Array],
    step: jax.Array,
    prompt_bias: jax.Array,
    own_bias: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """x [B, N, D] -> the same, and the layer's cache with this position in it."""
    y = layer.pre_self_attention_layer_norm(x)
    own = remember(cache, *layer.self_attention.project_keys_values(y), step)
    sources = [
        (cache["prompt_keys"], cache["prompt_values"], prompt_bias),
        (own["self_keys"], own["self_values"], own_bias),
    ]
    x = x + _attend(layer.self_attention, y, sources)
    return feed_forward(x, layer.pre_mlp_layer_norm, layer.mlp, OFF), cache | own


def _attend(attention: Attention, x: jax.Array, sources: list[tuple[jax.Array, jax.Array, jax.Array]]) -> jax.Array:
    """What `Attention` gives for queries with keys from several places: x [B, N, D] -> [B, N, D].

    sources: keys, values and bias. Keys [B, H, K, S] and values [B, H, S, K] are read by all N queries of a row; with
    an axis N behind B, each has its own. The bias is broadcast to [B, H, N, S], float32. Added up in float32, as sums
    of products, see `incremental`.
    """
    queries = jnp.swapaxes(attention.split_heads(attention.query(x)), 1, 2).astype(jnp.float32)  # [B, H, N, K]
    logits = [
        jnp.sum(queries[..., None] * _for_queries(keys).astype(jnp.float32), axis=-2) + bias
        for keys, _, bias in sources
    ]
    dtype = sources[0][1].dtype
    weights = jax.nn.softmax(jnp.concatenate(logits, axis=-1)).astype(dtype).astype(jnp.float32)
    mixed = jnp.zeros((), jnp.float32)
    start = 0
    for one, (_, values, _) in zip(logits, sources, strict=True):
        part = lax.slice_in_dim(weights, start, start + one.shape[-1], axis=-1)
        mixed = mixed + jnp.sum(part[..., None] * _for_queries(values).astype(jnp.float32), axis=-2)
        start += one.shape[-1]
    mixed = jnp.swapaxes(mixed.astype(x.dtype), 1, 2)
    return attention.out(mixed.reshape(*mixed.shape[:-2], -1))


def _for_queries(x: jax.Array) -> jax.Array:
    """Keys or values with the axes of queries [B, H, N, ...]; N is 1 where all of a row read the same."""
    return x[:, :, None] if x.ndim == 4 else jnp.swapaxes(x, 1, 2)
