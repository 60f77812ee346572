"""The stacks: pre-norm layers with residuals, the embedding before, a norm after.

Order of norm, dropout and residual as in T5X's minimal T5 (t5x/examples/t5/network.py) and its decoder alone
(t5x/examples/decoder_only/network.py); names of the parameters too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from t5xpg.models.attention import Attention
from t5xpg.models.biases import ChunkedBias, Pairs, WholeBias, as_bias, visible_keys
from t5xpg.models.config import T5Config
from t5xpg.models.layer_stack import LayerStack
from t5xpg.models.layers import OFF, Dense, Dropout, Embed, Mlp, RMSNorm, named_key
from t5xpg.models.positions import PositionTable, RelativePositionBias

Bias = WholeBias | ChunkedBias
Positions = RelativePositionBias | PositionTable


def self_attention(
    x: jax.Array, norm: RMSNorm, attention: Attention, bias: Bias, dropout: Dropout, name: str
) -> jax.Array:
    """x [B, T, D] plus what its positions see in each other. name: of the attention, for its dropout."""
    y = norm(x)
    keys, values = attention.project_keys_values(y)
    return x + dropout.at(name)(attention(y, keys, values, bias, dropout.at(f"{name}_weights")))


def feed_forward(x: jax.Array, norm: RMSNorm, mlp: Mlp, dropout: Dropout) -> jax.Array:
    """x [B, T, D] plus what the MLP makes of each position."""
    return x + dropout.at("mlp")(mlp(norm(x), dropout.at("mlp_hidden")))


def own_biases(
    pairs: Pairs, chunk_size: int | None, read: Callable[[RelativePositionBias], Positions] = lambda table: table
) -> Callable[[Layer], Bias]:
    """What is added to the logits of a layer's self attention, by its layer.

    pairs: with the positions of the stack's table, of which all layers have the same; with None where every layer has a
    table. read: how such a table is read.
    """
    shared = None if pairs.positions is None else pairs.bias(chunk_size)

    def of(layer: Layer) -> Bias:
        if layer.relpos_bias is None:
            assert shared is not None
            return shared
        return replace(pairs, positions=read(layer.relpos_bias)).bias(chunk_size)

    return of


def position_table(
    key: jax.Array, config: T5Config, *, bidirectional: bool, of_layer: bool
) -> RelativePositionBias | None:
    """The relative positions of a layer or of a stack, whichever of them has a table. key: its own."""
    if config.relpos_bias_in_every_layer != of_layer:
        return None
    return RelativePositionBias(named_key(key, "relpos_bias"), config, bidirectional)


class EncoderLayer(nnx.Module):
    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.relpos_bias = position_table(key, config, bidirectional=True, of_layer=True)
        self.pre_attention_layer_norm = RMSNorm(config.emb_dim)
        self.attention = Attention(named_key(key, "attention"), config)
        self.pre_mlp_layer_norm = RMSNorm(config.emb_dim)
        self.mlp = Mlp(named_key(key, "mlp"), config)

    def __call__(self, x: jax.Array, bias: Bias, dropout: Dropout) -> jax.Array:
        """[B, S, D] -> [B, S, D]."""
        x = self_attention(x, self.pre_attention_layer_norm, self.attention, bias, dropout, "attention")
        return feed_forward(x, self.pre_mlp_layer_norm, self.mlp, dropout)


class DecoderOnlyLayer(nnx.Module):
    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.relpos_bias = position_table(key, config, bidirectional=False, of_layer=True)
        self.pre_self_attention_layer_norm = RMSNorm(config.emb_dim)
        self.self_attention = Attention(named_key(key, "self_attention"), config)
        self.pre_mlp_layer_norm = RMSNorm(config.emb_dim)
        self.mlp = Mlp(named_key(key, "mlp"), config)

    def __call__(self, x: jax.Array, bias: Bias, dropout: Dropout) -> jax.Array:
        """[B, T, D] -> [B, T, D]."""
        x = self_attention(x, self.pre_self_attention_layer_norm, self.self_attention, bias, dropout, "self_attention")
        return feed_forward(x, self.pre_mlp_layer_norm, self.mlp, dropout)


class DecoderLayer(DecoderOnlyLayer):
    def __init__(self, key: jax.Array, config: T5Config) -> None:
        super().__init__(key, config)
        self.pre_cross_attention_layer_norm = RMSNorm(config.emb_dim)
        self.encoder_decoder_attention = Attention(named_key(key, "encoder_decoder_attention"), config)

    def with_source(
        self, x: jax.Array, encoded: jax.Array, self_bias: Bias, cross_bias: Bias, dropout: Dropout
    ) -> jax.Array:
        """x [B, T, D], encoded [B, S, D] -> [B, T, D]."""
        norm = self.pre_self_attention_layer_norm
        x = self_attention(x, norm, self.self_attention, self_bias, dropout, "self_attention")
        keys, values = self.encoder_decoder_attention.project_keys_values(encoded)
        y = self.pre_cross_attention_layer_norm(x)
        weights_dropout = dropout.at("encoder_decoder_attention_weights")
        y = self.encoder_decoder_attention(y, keys, values, cross_bias, weights_dropout)
        x = x + dropout.at("encoder_decoder_attention")(y)
        return feed_forward(x, self.pre_mlp_layer_norm, self.mlp, dropout)

    def source_weights(self, x: jax.Array, encoded: jax.Array, self_bias: Bias, cross_bias: WholeBias) -> jax.Array:
        """The weights over the source [B, H, T, S] float32 in `with_source`, without dropout."""
        x = self_attention(x, self.pre_self_attention_layer_norm, self.self_attention, self_bias, OFF, "self_attention")
        keys, _ = self.encoder_decoder_attention.project_keys_values(encoded)
        return self.encoder_decoder_attention.weights(self.pre_cross_attention_layer_norm(x), keys, cross_bias)


Layer = EncoderLayer | DecoderOnlyLayer


class Encoder(LayerStack):
    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.dtype = jnp.dtype(config.dtype)
        self.chunk_size = config.attention_chunk_size
        self.relpos_bias = position_table(key, config, bidirectional=True, of_layer=False)
        self.add_layers(key, config, config.num_encoder_layers, EncoderLayer)
        self.encoder_norm = RMSNorm(config.emb_dim)

    def __call__(
        self, embed: Embed, tokens: jax.Array, segment_ids: jax.Array | None = None, dropout: Dropout = OFF
    ) -> jax.Array:
        """tokens [B, S] int32 -> [B, S, D] in the compute dtype."""
        pairs = Pairs(tokens.shape[1], tokens, segment_ids, segment_ids, positions=self.relpos_bias)
        bias_of = own_biases(pairs, self.chunk_size)
        x = dropout.at("embedding")(embed(tokens, self.dtype))
        x = self.through_layers(x, lambda x, layer, dropout: layer(x, bias_of(layer), dropout), dropout)
        # T5X decides here for each value, everywhere else for a whole sequence
        return dropout.at("output")(self.encoder_norm(x), shared_axis=None)


class _DecoderStack(LayerStack):
    layer: type[DecoderOnlyLayer]

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.dtype = jnp.dtype(config.dtype)
        self.chunk_size = config.attention_chunk_size
        self.relpos_bias = position_table(key, config, bidirectional=False, of_layer=False)
        self.add_layers(key, config, config.num_decoder_layers, self.layer)
        self.decoder_norm = RMSNorm(config.emb_dim)
        self.logits_dense = output_matrix(key, config)

    def to_logits(self, embed: Embed, x: jax.Array) -> jax.Array:
        """x [..., D] -> logits [..., V] float32."""
        return to_logits(embed, self.logits_dense, x)


class Decoder(_DecoderStack):
    layer = DecoderLayer

    def __call__(
        self,
        embed: Embed,
        encoded: jax.Array,
        encoder_tokens: jax.Array,
        input_tokens: jax.Array,
        target_tokens: jax.Array,
        encoder_segment_ids: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        dropout: Dropout = OFF,
    ) -> jax.Array:
        """As `DecoderOnly`, with encoded [B, S, D] of the encoder's tokens [B, S]."""
        length = input_tokens.shape[1]
        own = Pairs(length, target_tokens, segment_ids, segment_ids, is_causal=True, positions=self.relpos_bias)
        bias_of = own_biases(own, self.chunk_size)
        cross_bias = Pairs(length, encoder_tokens, segment_ids, encoder_segment_ids).bias(self.chunk_size)
        x = dropout.at("embedding")(embed(input_tokens, self.dtype))

        def through(x: jax.Array, layer: DecoderLayer, dropout: Dropout) -> jax.Array:
            return layer.with_source(x, encoded, bias_of(layer), cross_bias, dropout)

        x = self.through_layers(x, through, dropout)
        return self.to_logits(embed, dropout.at("output")(self.decoder_norm(x)))

    def source_weights(
        self,
        embed: Embed,
        encoded: jax.Array,
        encoder_tokens: jax.Array,
        input_tokens: jax.Array,
        target_tokens: jax.Array,
    ) -> jax.Array:
        """The attention of every layer over the source, without dropout: [B, L, H, T, S] float32."""
        length = input_tokens.shape[1]
        own = Pairs(length, target_tokens, None, None, is_causal=True, positions=self.relpos_bias)
        bias_of, cross_bias = own_biases(own, None), WholeBias(as_bias(visible_keys(encoder_tokens)))
        x, found = embed(input_tokens, self.dtype), []
        for _, layer in self.named_layers():
            found.append(layer.source_weights(x, encoded, bias_of(layer), cross_bias))
            x = layer.with_source(x, encoded, bias_of(layer), cross_bias, OFF)
        return jnp.stack(found, axis=1)


class DecoderOnly(_DecoderStack):
    """A decoder without cross attention."""

    layer = DecoderOnlyLayer

    def __call__(
        self,
        embed: Embed,
        input_tokens: jax.Array,
        target_tokens: jax.Array,
        segment_ids: jax.Array | None = None,
        prefix: jax.Array | None = None,
        dropout: Dropout = OFF,
    ) -> jax.Array:
        """Input and target tokens [B, T] -> logits [B, T, V] float32.

        The targets only say which positions are padding. prefix: [B, T], not 0 where a position is seen by all of its
        segment; None where each is seen by those behind it alone.
        """
        pairs = Pairs(
            input_tokens.shape[1], target_tokens, segment_ids, segment_ids, is_causal=True,
            positions=self.relpos_bias, prefix=prefix,
        )  # fmt: skip
        bias_of = own_biases(pairs, self.chunk_size)
        x = dropout.at("embedding")(embed(input_tokens, self.dtype))
        x = self.through_layers(x, lambda x, layer, dropout: layer(x, bias_of(layer), dropout), dropout)
        return self.to_logits(embed, dropout.at("output")(self.decoder_norm(x)))


def output_matrix(key: jax.Array, config: T5Config) -> Dense | None:
    """The matrix behind a stack's output; None where the embedding is it."""
    if config.logits_via_embedding:
        return None
    return Dense(named_key(key, "logits_dense"), (config.emb_dim, config.vocab_size), ("embed", "vocab"))


def to_logits(embed: Embed, matrix: Dense | None, x: jax.Array) -> jax.Array:
    """x [..., D] -> logits [..., V]. In float32, whatever the compute dtype: T5X's choice for stability."""
    if matrix is None:
        return embed.attend(x) / math.sqrt(x.shape[-1])
    return matrix(x.astype(jnp.float32))
