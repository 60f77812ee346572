"""The encoder's and the decoder's stack: pre-norm layers with residuals, the embedding before, a norm after.

Order of norm, dropout and residual as in T5X's minimal T5 (t5x/examples/t5/network.py); names of the parameters too.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from t5xpg.models.attention import Attention
from t5xpg.models.biases import ChunkedBias, Pairs, WholeBias
from t5xpg.models.config import T5Config
from t5xpg.models.dropout import OFF, Dropout
from t5xpg.models.keys import named_key
from t5xpg.models.layers import Dense, Embed, Mlp, RMSNorm
from t5xpg.models.positions import RelativePositionBias

Bias = WholeBias | ChunkedBias


class EncoderLayer(nnx.Module):
    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.pre_attention_layer_norm = RMSNorm(config.emb_dim)
        self.attention = Attention(named_key(key, "attention"), config)
        self.pre_mlp_layer_norm = RMSNorm(config.emb_dim)
        self.mlp = Mlp(named_key(key, "mlp"), config)

    def __call__(self, x: jax.Array, bias: Bias, dropout: Dropout) -> jax.Array:
        """[B, S, D] -> [B, S, D]."""
        y = self.pre_attention_layer_norm(x)
        keys, values = self.attention.project_keys_values(y)
        y = self.attention(y, keys, values, bias, dropout.at("attention_weights"))
        x = x + dropout.at("attention")(y)
        y = self.mlp(self.pre_mlp_layer_norm(x), dropout.at("mlp_hidden"))
        return x + dropout.at("mlp")(y)


class DecoderLayer(nnx.Module):
    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.pre_self_attention_layer_norm = RMSNorm(config.emb_dim)
        self.self_attention = Attention(named_key(key, "self_attention"), config)
        self.pre_cross_attention_layer_norm = RMSNorm(config.emb_dim)
        self.encoder_decoder_attention = Attention(named_key(key, "encoder_decoder_attention"), config)
        self.pre_mlp_layer_norm = RMSNorm(config.emb_dim)
        self.mlp = Mlp(named_key(key, "mlp"), config)

    def __call__(
        self, x: jax.Array, encoded: jax.Array, self_bias: Bias, cross_bias: Bias, dropout: Dropout
    ) -> jax.Array:
        """x [B, T, D], encoded [B, S, D] -> [B, T, D]."""
        y = self.pre_self_attention_layer_norm(x)
        keys, values = self.self_attention.project_keys_values(y)
        y = self.self_attention(y, keys, values, self_bias, dropout.at("self_attention_weights"))
        x = x + dropout.at("self_attention")(y)
        keys, values = self.encoder_decoder_attention.project_keys_values(encoded)
        y = self.pre_cross_attention_layer_norm(x)
        weights_dropout = dropout.at("encoder_decoder_attention_weights")
        y = self.encoder_decoder_attention(y, keys, values, cross_bias, weights_dropout)
        x = x + dropout.at("encoder_decoder_attention")(y)
        y = self.mlp(self.pre_mlp_layer_norm(x), dropout.at("mlp_hidden"))
        return x + dropout.at("mlp")(y)


class Encoder(nnx.Module):
    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.dtype = jnp.dtype(config.dtype)
        self.num_layers = config.num_encoder_layers
        self.chunk_size = config.attention_chunk_size
        self.relpos_bias = RelativePositionBias(named_key(key, "relpos_bias"), config, bidirectional=True)
        for index in range(self.num_layers):
            setattr(self, f"layers_{index}", EncoderLayer(named_key(key, f"layers_{index}"), config))
        self.encoder_norm = RMSNorm(config.emb_dim)

    def __call__(
        self, embed: Embed, tokens: jax.Array, segment_ids: jax.Array | None = None, dropout: Dropout = OFF
    ) -> jax.Array:
        """tokens [B, S] int32 -> [B, S, D] in the compute dtype."""
        pairs = Pairs(tokens.shape[1], tokens, segment_ids, segment_ids, positions=self.relpos_bias)
        bias = pairs.bias(self.chunk_size)
        x = dropout.at("embedding")(embed(tokens, self.dtype))
        for index in range(self.num_layers):
            name = f"layers_{index}"
            x = getattr(self, name)(x, bias, dropout.at(name))
        # T5X decides here for each value, everywhere else for a whole sequence
        return dropout.at("output")(self.encoder_norm(x), shared_axis=None)


class Decoder(nnx.Module):
    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.dtype = jnp.dtype(config.dtype)
        self.num_layers = config.num_decoder_layers
        self.chunk_size = config.attention_chunk_size
        self.tied = config.logits_via_embedding
        self.relpos_bias = RelativePositionBias(named_key(key, "relpos_bias"), config, bidirectional=False)
        for index in range(self.num_layers):
            setattr(self, f"layers_{index}", DecoderLayer(named_key(key, f"layers_{index}"), config))
        self.decoder_norm = RMSNorm(config.emb_dim)
        if not self.tied:
            shape = (config.emb_dim, config.vocab_size)
            self.logits_dense = Dense(named_key(key, "logits_dense"), shape, ("embed", "vocab"))

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
        """encoded [B, S, D], input and target tokens [B, T] -> logits [B, T, V] float32.

        The targets only say which positions are padding: the first input token is 0 itself.
        """
        length = input_tokens.shape[1]
        own = Pairs(length, target_tokens, segment_ids, segment_ids, is_causal=True, positions=self.relpos_bias)
        self_bias = own.bias(self.chunk_size)
        cross_bias = Pairs(length, encoder_tokens, segment_ids, encoder_segment_ids).bias(self.chunk_size)
        x = dropout.at("embedding")(embed(input_tokens, self.dtype))
        for index in range(self.num_layers):
            name = f"layers_{index}"
            layer = getattr(self, name)
            x = layer(x, encoded, self_bias, cross_bias, dropout.at(name))
        return self.to_logits(embed, dropout.at("output")(self.decoder_norm(x)))

    def to_logits(self, embed: Embed, x: jax.Array) -> jax.Array:
        """In float32, whatever the compute dtype: T5X's choice for stability."""
        if self.tied:
            return embed.attend(x) / math.sqrt(x.shape[-1])
        return self.logits_dense(x.astype(jnp.float32))
