"""T5 with one stack of layers for encoder and decoder: about half of the parameters (Raffel et al. 2020, table 2)."""

import jax
from flax import nnx

from t5xpg.base.errors import UserError
from t5xpg.models.attention.biases import AttentionPattern
from t5xpg.models.attention.geometry import self_geometries
from t5xpg.models.config import ENCODER_SIZES, T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.layers import OFF, Dropout, Embed, named_key, token_embedder
from t5xpg.models.soft_prompt import make_prompt
from t5xpg.models.stacks import Decoder, Source


class SharedTransformer(nnx.Module):
    """The modules of SharedEncoderDecoderModel: those of a decoder, which also encodes."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        if config.num_encoder_layers != config.num_decoder_layers:
            raise UserError(
                f"T5Config has {config.num_encoder_layers} layers for the encoder and {config.num_decoder_layers} for "
                "the decoder: where they share their parameters, the numbers have to be equal."
            )
        encoder_settings = {"share_embeddings", "encoder_global_block", *ENCODER_SIZES}
        config.require_t5("A SharedEncoderDecoderModel", set(config.beyond_t5) - encoder_settings)
        self.token_embedder = token_embedder(named_key(key, "token_embedder"), config)
        self.prompt = make_prompt(key, config)
        self.decoder_token_embedder = None
        self.decoder = Decoder(named_key(key, "decoder"), config)

    def encoder(
        self, embed: Embed, tokens: jax.Array, segment_ids: jax.Array | None = None, dropout: Dropout = OFF
    ) -> Source:
        """Encode tokens [B, S] int32 with the decoder's layers, without their cross attention."""
        stack = self.decoder
        pattern = AttentionPattern(tokens.shape[1], tokens, segment_ids, segment_ids)
        geometry = self_geometries(stack.config, pattern, stack.config.windows.encoder, stack.relpos_bias)
        x = dropout.at("embedding")(embed(tokens, stack.dtype, segment_ids))
        x = stack.run_layers(x, lambda x, layer, dropout, index: layer(x, geometry(layer, index), dropout), dropout)
        return Source(dropout.at("output")(stack.decoder_norm(x), shared_axis=None), tokens, segment_ids)


class SharedEncoderDecoderModel(EncoderDecoderModel):
    """An encoder-decoder whose encoder shares all parameters of its decoder, except those of cross attention.

    As Mesh-TensorFlow's `bi_v1_shared`; the encoder reads the table of relative positions in both directions.
    """

    @staticmethod
    def modules(key: jax.Array, config: T5Config) -> nnx.Module:
        return SharedTransformer(key, config)
