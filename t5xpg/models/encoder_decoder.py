"""T5's encoder-decoder as pure functions of a parameter tree and a batch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from t5xpg.models.attention.biases import as_bias, visible_keys
from t5xpg.models.attention.geometry import rotations, select_kind
from t5xpg.models.attention.rotary import source_lengths, source_positions
from t5xpg.models.config import T5Config
from t5xpg.models.decoding import kv_cache
from t5xpg.models.layers import Dropout, Embed, named_key, token_embedder
from t5xpg.models.model import Batch, LayerFlops, Model, Outputs, Params
from t5xpg.models.soft_prompt import make_prompt, prepend_prompt, soft_prompt_embed
from t5xpg.models.stacks import Decoder, Encoder, Source

__all__ = ["EncoderDecoderModel", "T5Config"]


class Transformer(nnx.Module):
    """The modules of EncoderDecoderModel."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        encoder = config.encoder
        self.token_embedder = token_embedder(named_key(key, "token_embedder"), encoder)
        self.prompt = make_prompt(key, encoder)
        self.decoder_token_embedder = (
            None if config.embeddings.shared else token_embedder(named_key(key, "decoder_token_embedder"), config)
        )
        self.encoder = Encoder(named_key(key, "encoder"), encoder)
        self.decoder = Decoder(named_key(key, "decoder"), config)


class EncoderDecoderModel(Model):
    """T5: an encoder reads the inputs, and a decoder writes the targets, attending to the output of the encoder."""

    feature_converters = ("EncDecFeatureConverter",)

    @staticmethod
    def modules(key: jax.Array, config: T5Config) -> nnx.Module:
        return Transformer(key, config)

    def outputs(self, params: Params, batch: Batch, *, dropout_key: jax.Array | None = None) -> Outputs:
        """The states [B, T, D] of every target position, given the targets before it (teacher forcing).

        batch: encoder_input_tokens [B, S], decoder_input_tokens and decoder_target_tokens [B, T]; where packed also
        encoder_segment_ids [B, S] and decoder_segment_ids [B, T]. Other keys are ignored: T5 needs distances only.
        """
        modules = self.with_parameters(params)
        dropout = Dropout(self.config.dropout_rate, dropout_key)
        segment_ids = batch.get("encoder_segment_ids")
        tokens = prepend_prompt(batch["encoder_input_tokens"], self.config.prompt_tokens, segment_ids)
        source = modules.encoder(soft_prompt_embed(modules), tokens, segment_ids, dropout.at("encoder"))
        embed = _decoder_embedder(modules)
        states = modules.decoder(
            embed,
            source,
            self.with_start_ids(batch["decoder_input_tokens"]),
            batch["decoder_target_tokens"],
            batch.get("decoder_segment_ids"),
            dropout.at("decoder"),
        )
        return Outputs(states, functools.partial(modules.decoder.to_logits, embed))

    def for_decoding(self, feature_converter: str) -> EncoderDecoderModel:
        """Itself: an encoder-decoder decodes as it was trained."""
        return self

    def encode(self, params: Params, encoder_input_tokens: jax.Array) -> jax.Array:
        """[B, S] int32 -> the encoder's output [B, S, D] in the compute dtype, without dropout."""
        return self.source(params, encoder_input_tokens).states[:, self.config.prompt_tokens :]

    def source(self, params: Params, encoder_input_tokens: jax.Array) -> Source:
        """[B, S] int32 -> what the decoder attends to, without dropout."""
        modules = self.with_parameters(params)
        tokens = prepend_prompt(encoder_input_tokens, self.config.prompt_tokens)
        return modules.encoder(soft_prompt_embed(modules), tokens)

    def source_attention(self, params: Params, batch: Batch) -> jax.Array:
        """The attention of each decoder position over the source: [B, L, H, T, S] float32. It adds up to 1 over S, less
        the weights on the decoder's own positions (merged attention) or on the prompt. batch: as for `logits`, but not
        packed."""
        modules, source = self.with_parameters(params), self.source(params, batch["encoder_input_tokens"])
        decoder_inputs = self.with_start_ids(batch["decoder_input_tokens"])
        weights: jax.Array = modules.decoder.source_weights(
            _decoder_embedder(modules), source, decoder_inputs, batch["decoder_target_tokens"]
        )
        return weights[..., self.config.prompt_tokens :]

    def init_cache(
        self,
        params: Params,
        encoder_input_tokens: jax.Array,
        max_decode_length: int,
        rows: int | None = None,
        beams: int | None = None,
        reordered: bool = False,
    ) -> kv_cache.Cache:
        """Each layer's keys and values of the source, and room for those of its own positions: see `Decodable`."""
        decoder: Decoder = self.with_parameters(params).decoder
        config, is_rotary = self.config, self.config.has_rotary_cross_attention

        def source_cache(tokens: jax.Array) -> kv_cache.SourceCache:
            source = self.source(params, tokens)
            layer_rotations = rotations(config, source_positions(source.tokens, None)) if is_rotary else (None,)
            layers = {
                name: kv_cache.source_keys_values(
                    layer.source_attention, source.states, select_kind(config, layer_rotations, index)
                )
                for index, (name, layer) in enumerate(decoder.named_layers())
            }
            first = {"first": source_lengths(source.tokens)} if is_rotary else {}
            return layers, {"source_bias": as_bias(visible_keys(source.tokens)), **first}

        return kv_cache.init_cache(
            decoder, source_cache, encoder_input_tokens, max_decode_length, rows=rows, beams=beams, reordered=reordered
        )

    def first_tokens(self, encoder_input_tokens: jax.Array) -> jax.Array:
        """[B, S] -> [B] int32, the decoder's input at the first position: T5 begins with the padding id."""
        return jnp.full(encoder_input_tokens.shape[:1], self.config.decoder_start_token_id, jnp.int32)

    def decode_step(
        self, params: Params, cache: kv_cache.Cache, tokens: jax.Array, step: jax.Array
    ) -> tuple[jax.Array, kv_cache.Cache]:
        """The logits of the token after `tokens`, and the cache with `tokens` added."""
        modules = self.with_parameters(params)
        return kv_cache.decode_step(modules.decoder, _decoder_embedder(modules), cache, tokens, step)

    reorder_beams = staticmethod(kv_cache.reorder)

    def flops_per_example(self, lengths: Mapping[str, int]) -> float:
        """See `Model.flops_per_example`. lengths: {"inputs": S, "targets": T}."""
        S, T = lengths["inputs"] + self.config.prompt_tokens, lengths["targets"]
        decoder_flops, config = LayerFlops(self.config), self.config
        encoder_flops = LayerFlops(config.encoder)
        encoder = encoder_flops.self_attention_and_mlp(S, config.num_encoder_layers, config.windows.encoder)
        encoder += config.num_encoder_layers * encoder_flops.global_tokens(S)
        behind = None if config.heads.merged else config.windows.decoder
        window = None if behind is None else (behind, 0)
        decoder = decoder_flops.self_attention_and_mlp(T, config.num_decoder_layers, window)
        decoder += config.num_decoder_layers * decoder_flops.cross_attention(T, S)
        return 3.0 * (encoder + decoder + decoder_flops.output(T))


def _decoder_embedder(modules: Any) -> Embed:
    """The embedding of the decoder's tokens."""
    return modules.token_embedder if modules.decoder_token_embedder is None else modules.decoder_token_embedder
