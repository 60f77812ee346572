"""The stacks: layers with norms and residuals, after the embedding and before a last norm.

The order of norm, dropout and residual, and the names of the parameters, are those of T5X's minimal T5
(t5x/examples/t5/network.py) and of its decoder alone (t5x/examples/decoder_only/network.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from t5xpg.models.attention import Attention, SideInputs, soft_cap
from t5xpg.models.attention.biases import AttentionPattern
from t5xpg.models.attention.geometry import Geometry, rotations, select_kind, self_geometries
from t5xpg.models.attention.global_tokens import global_tokens
from t5xpg.models.attention.relative_positions import RelativePositionBias
from t5xpg.models.attention.rotary import decoder_positions, positions_in_segments, source_positions
from t5xpg.models.config import T5Config
from t5xpg.models.layer_stack import LayerStack
from t5xpg.models.layers import OFF, Dense, Dropout, Embed, Mlp, RMSNorm, named_key


def add_norms(layer: nnx.Module, name: str, config: T5Config) -> None:
    """Give a layer its norms before and after the part called `name`; None where it has none."""
    for place in ("pre", "post"):
        norm = RMSNorm(config.emb_dim) if config.layer_norms in (place, "both") else None
        setattr(layer, f"{place}_{name}_layer_norm", norm)


def apply_norm(layer: nnx.Module, place: str, name: str, x: jax.Array) -> jax.Array:
    """x [..., D] after the layer's "pre" or "post" norm (`place`) for its part `name`; x if there is no such norm."""
    norm = getattr(layer, f"{place}_{name}_layer_norm")
    return x if norm is None else norm(x)


def residual(
    layer: nnx.Module, name: str, x: jax.Array, part: Callable[[jax.Array], jax.Array], dropout: Dropout
) -> jax.Array:
    """x [..., D] plus the output of the part called `name`, with the layer's norms before and after that part."""
    return x + dropout(apply_norm(layer, "post", name, part(apply_norm(layer, "pre", name, x))))


def self_attention(
    layer: nnx.Module,
    name: str,
    x: jax.Array,
    geometry: Geometry,
    dropout: Dropout,
    source: tuple[jax.Array, jax.Array] | None = None,
) -> jax.Array:
    """x [B, T, D] plus its self attention. name: the name of the attention in its layer.

    source: keys and values [B, S, G, K] of further positions, which all positions of x see.
    """
    attention: Attention = getattr(layer, name)

    def attend(y: jax.Array) -> jax.Array:
        keys, values = attention.project_keys_values(y, geometry.keys)
        if source is not None:
            keys, values = (jnp.concatenate(both, axis=1) for both in zip((keys, values), source, strict=True))
        side = None
        if (tokens := geometry.global_tokens) is not None:
            assert isinstance(layer, EncoderLayer)
            summed = layer.global_input_layer_norm(tokens.block_sums(y))
            side = SideInputs(*attention.project_keys_values(summed), tokens.bias)
        return attention(y, keys, values, geometry.bias, dropout.at(f"{name}_weights"), geometry.queries, side)

    return residual(layer, name, x, attend, dropout.at(name))


def feed_forward(layer: Layer, x: jax.Array, dropout: Dropout) -> jax.Array:
    """x [B, T, D] plus the MLP's output for each position."""
    return residual(layer, "mlp", x, lambda y: layer.mlp(y, dropout.at("mlp_hidden")), dropout.at("mlp"))


def position_table(
    key: jax.Array, config: T5Config, *, per_layer: bool, name: str = "relpos_bias"
) -> RelativePositionBias | None:
    """The table of relative positions of a layer (`per_layer`) or of a stack; None if it has none. key: its own."""
    if config.buckets is None or config.buckets.in_every_layer != per_layer:
        return None
    return RelativePositionBias(named_key(key, name), config)


class Layer(nnx.Module):
    """A layer of self attention and MLP. attention_name: the name of the attention among the parameters."""

    attention_name = "self_attention"
    self_attention: Attention

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.relpos_bias = position_table(key, config, per_layer=True)
        add_norms(self, self.attention_name, config)
        setattr(self, self.attention_name, Attention(named_key(key, self.attention_name), config))
        add_norms(self, "mlp", config)
        self.mlp = Mlp(named_key(key, "mlp"), config)

    def __call__(self, x: jax.Array, geometry: Geometry, dropout: Dropout) -> jax.Array:
        """[B, T, D] -> [B, T, D]."""
        return feed_forward(self, self_attention(self, self.attention_name, x, geometry, dropout), dropout)


class EncoderLayer(Layer):
    attention_name = "attention"

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        super().__init__(key, config)
        if config.windows.global_block is not None:
            self.global_input_layer_norm = RMSNorm(config.emb_dim)


class DecoderLayer(Layer):
    """A layer that also attends to a source: by a separate attention, or by one merged with its self attention."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        super().__init__(key, config)
        self.is_merged = config.heads.merged
        self.turns_source = config.has_rotary_cross_attention
        if not self.is_merged:
            add_norms(self, "cross_attention", config)
            self.encoder_decoder_attention = Attention(
                named_key(key, "encoder_decoder_attention"), config, config.encoder.emb_dim
            )

    @property
    def source_attention(self) -> Attention:
        """The attention that looks at the source."""
        return self.self_attention if self.is_merged else self.encoder_decoder_attention

    def with_source(
        self, x: jax.Array, encoded: jax.Array, geometry: Geometry, cross: Geometry, dropout: Dropout
    ) -> jax.Array:
        """x [B, T, D], encoded [B, S, D] -> [B, T, D]."""
        keys, values = self.source_attention.project_keys_values(encoded, cross.keys)
        if self.is_merged:
            x = self_attention(self, "self_attention", x, geometry.merge(cross), dropout, (keys, values))
            return feed_forward(self, x, dropout)
        x = self_attention(self, "self_attention", x, geometry, dropout)

        def look(y: jax.Array) -> jax.Array:
            weights_dropout = dropout.at("encoder_decoder_attention_weights")
            return self.encoder_decoder_attention(y, keys, values, cross.bias, weights_dropout, cross.queries)

        x = residual(self, "cross_attention", x, look, dropout.at("encoder_decoder_attention"))
        return feed_forward(self, x, dropout)

    def source_weights(self, x: jax.Array, encoded: jax.Array, geometry: Geometry, cross: Geometry) -> jax.Array:
        """The attention weights of `with_source` over the source, without dropout: [B, H, T, S] float32."""
        keys, _ = self.source_attention.project_keys_values(encoded, cross.keys)
        if self.is_merged:
            y = apply_norm(self, "pre", "self_attention", x)
            keys = jnp.concatenate([self.self_attention.project_keys_values(y, geometry.keys)[0], keys], axis=1)
            weights = self.self_attention.weights(y, keys, geometry.merge(cross).dense, geometry.queries)
            return weights[..., x.shape[1] :]
        x = self_attention(self, "self_attention", x, geometry, OFF)
        y = apply_norm(self, "pre", "cross_attention", x)
        return self.encoder_decoder_attention.weights(y, keys, cross.dense, cross.queries)


class Source(NamedTuple):
    """The source that a decoder attends to.

    states: the encoder's output [B, S, D] in the compute dtype. tokens: [B, S], the ids at its positions; padding is 0.
    segment_ids: [B, S], for packed rows.
    """

    states: jax.Array
    tokens: jax.Array
    segment_ids: jax.Array | None = None


class Encoder(LayerStack):
    layer: type[EncoderLayer] = EncoderLayer

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.config = config
        self.dtype = jnp.dtype(config.dtype)
        self.relpos_bias = position_table(key, config, per_layer=False)
        if config.windows.global_block is not None:
            self.global_relpos_bias = position_table(key, config, per_layer=False, name="global_relpos_bias")
        self.add_layers(key, config, config.num_encoder_layers, self.layer)
        self.encoder_norm = RMSNorm(config.emb_dim)

    def __call__(
        self, embed: Embed, tokens: jax.Array, segment_ids: jax.Array | None = None, dropout: Dropout = OFF
    ) -> Source:
        """tokens [B, S] int32."""
        x = dropout.at("embedding")(embed(tokens, self.dtype, segment_ids))
        geometry = self.geometry(tokens, segment_ids)
        x = self.run_layers(x, lambda x, layer, dropout, index: layer(x, geometry(layer, index), dropout), dropout)
        # here T5X drops each value by itself, everywhere else one decision holds for a whole sequence
        return Source(dropout.at("output")(self.encoder_norm(x), shared_axis=None), tokens, segment_ids)

    def geometry(
        self, tokens: jax.Array, segment_ids: jax.Array | None = None
    ) -> Callable[[EncoderLayer, int | jax.Array], Geometry]:
        """The geometry of self attention for tokens [B, S], by layer and index."""
        pattern = AttentionPattern(tokens.shape[1], tokens, segment_ids, segment_ids)
        sums, size = None, self.config.windows.global_block
        if size is not None and tokens.shape[1] >= size:
            sums = global_tokens(tokens, segment_ids, size, self.global_relpos_bias)
        return self_geometries(self.config, pattern, self.config.windows.encoder, self.relpos_bias, None, sums)


class _DecoderStack(LayerStack):
    layer: type[Layer] = Layer

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.config = config
        self.dtype = jnp.dtype(config.dtype)
        self.relpos_bias = position_table(key, config, per_layer=False)
        self.add_layers(key, config, config.num_decoder_layers, self.layer)
        self.decoder_norm = RMSNorm(config.emb_dim)
        self.logits_dense = output_matrix(key, config)

    @property
    def window(self) -> tuple[int, int] | None:
        """The numbers of positions behind and ahead that a position sees in layers with a window."""
        behind = self.config.windows.decoder
        return None if behind is None else (behind, behind)

    def to_logits(self, embed: Embed, x: jax.Array) -> jax.Array:
        """x [..., D] -> logits [..., V] float32."""
        return to_logits(self.config, embed, self.logits_dense, x)


class Decoder(_DecoderStack):
    layer = DecoderLayer

    def __call__(
        self,
        embed: Embed,
        source: Source,
        input_tokens: jax.Array,
        target_tokens: jax.Array,
        segment_ids: jax.Array | None = None,
        dropout: Dropout = OFF,
    ) -> jax.Array:
        """As `DecoderOnly`, with a source."""
        geometry, cross = self._geometries(self.config, source, target_tokens, segment_ids)
        x = dropout.at("embedding")(embed(input_tokens, self.dtype, segment_ids))

        def apply_layer(x: jax.Array, layer: DecoderLayer, dropout: Dropout, index: int | jax.Array) -> jax.Array:
            return layer.with_source(x, source.states, geometry(layer, index), cross(index), dropout)

        x = self.run_layers(x, apply_layer, dropout)
        return dropout.at("output")(self.decoder_norm(x))

    def _geometries(
        self, config: T5Config, source: Source, target_tokens: jax.Array, segment_ids: jax.Array | None = None
    ) -> tuple[Callable[[DecoderLayer, int | jax.Array], Geometry], Callable[[int | jax.Array], Geometry]]:
        """The geometry of self attention, by layer and index, and of the attention over the source, by index."""
        length, (_, encoder_tokens, encoder_segment_ids) = target_tokens.shape[1], source
        self_pattern = AttentionPattern(length, target_tokens, segment_ids, segment_ids, is_causal=True)
        source_pattern = AttentionPattern(length, encoder_tokens, segment_ids, encoder_segment_ids)
        bias = source_pattern.make_bias(config.attention_chunk_size)
        # source keys are not turned, so products with them depend on a query's position: count it within its text
        positions = None if segment_ids is None else positions_in_segments(segment_ids)
        queries = keys = (None,)
        if config.has_rotary_cross_attention:
            positions = decoder_positions(encoder_tokens, length, segment_ids, encoder_segment_ids)
            queries = rotations(config, positions)
            keys = rotations(config, source_positions(encoder_tokens, encoder_segment_ids))

        def source_geometry(index: int | jax.Array) -> Geometry:
            return Geometry(bias, select_kind(config, queries, index), select_kind(config, keys, index))

        return self_geometries(config, self_pattern, self.window, self.relpos_bias, positions), source_geometry

    def source_weights(
        self, embed: Embed, source: Source, input_tokens: jax.Array, target_tokens: jax.Array
    ) -> jax.Array:
        """The attention of every layer over the source, without dropout: [B, L, H, T, S] float32."""
        geometry, cross = self._geometries(replace(self.config, attention_chunk_size=None), source, target_tokens)
        x, weights = embed(input_tokens, self.dtype), []
        for index, (_, layer) in enumerate(self.named_layers()):
            geometries = geometry(layer, index), cross(index)
            weights.append(layer.source_weights(x, source.states, *geometries))
            x = layer.with_source(x, source.states, *geometries, OFF)
        return jnp.stack(weights, axis=1)


class DecoderOnly(_DecoderStack):
    """A decoder without cross attention."""

    def __call__(
        self,
        embed: Embed,
        input_tokens: jax.Array,
        target_tokens: jax.Array,
        segment_ids: jax.Array | None = None,
        prefix: jax.Array | None = None,
        dropout: Dropout = OFF,
    ) -> jax.Array:
        """Input and target tokens [B, T] -> states [B, T, D].

        The targets only say which positions are padding. prefix: [B, T], not 0 at positions of a prefix; these see the
        whole prefix of their segment, later positions too. None: each position sees itself and those before it.
        """
        length = input_tokens.shape[1]
        pattern = AttentionPattern(length, target_tokens, segment_ids, segment_ids, is_causal=True, prefix=prefix)
        geometry = self_geometries(self.config, pattern, self.window, self.relpos_bias)
        x = dropout.at("embedding")(embed(input_tokens, self.dtype, segment_ids))
        x = self.run_layers(x, lambda x, layer, dropout, index: layer(x, geometry(layer, index), dropout), dropout)
        return dropout.at("output")(self.decoder_norm(x))


def output_matrix(key: jax.Array, config: T5Config) -> Dense | None:
    """The output matrix of a stack; None where it is tied to the embedding."""
    if config.logits_via_embedding:
        return None
    return Dense(named_key(key, "logits_dense"), (config.emb_dim, config.vocab_size), ("embed", "vocab"))


def to_logits(config: T5Config, embed: Embed, matrix: Dense | None, x: jax.Array) -> jax.Array:
    """x [..., D] -> logits [..., V]. In float32, whatever the compute dtype: T5X's choice for stability."""
    logits = embed.attend(x) / math.sqrt(x.shape[-1]) if matrix is None else matrix(x.astype(jnp.float32))
    return soft_cap(logits, config.logit_softcap)
