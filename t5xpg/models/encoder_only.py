"""T5's encoder alone, with an output matrix: it predicts which token belongs at each position, as BERT does."""

import functools
from collections.abc import Mapping

import jax
from flax import nnx

from t5xpg.models.config import DECODER_SETTINGS, TWO_STACK_SETTINGS, T5Config
from t5xpg.models.layers import Dropout, named_key, token_embedder
from t5xpg.models.model import Batch, LayerFlops, Model, Outputs, Params
from t5xpg.models.soft_prompt import make_prompt, prepend_prompt, soft_prompt_embed
from t5xpg.models.stacks import Encoder, output_matrix, to_logits


class EncoderOnlyTransformer(nnx.Module):
    """The modules of EncoderOnlyModel."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        config.require_t5("An EncoderOnlyModel", set(config.beyond_t5) - TWO_STACK_SETTINGS - DECODER_SETTINGS)
        self.token_embedder = token_embedder(named_key(key, "token_embedder"), config)
        self.prompt = make_prompt(key, config)
        self.encoder = Encoder(named_key(key, "encoder"), config)
        self.logits_dense = output_matrix(key, config)


class EncoderOnlyModel(Model):
    """A masked language model of `num_encoder_layers` layers. `num_decoder_layers` has no meaning."""

    feature_converters = ("MaskedLMFeatureConverter",)

    @staticmethod
    def modules(key: jax.Array, config: T5Config) -> nnx.Module:
        return EncoderOnlyTransformer(key, config)

    def outputs(self, params: Params, batch: Batch, *, dropout_key: jax.Array | None = None) -> Outputs:
        """The states [B, S, D] of every position, given all of its row, or of its segment.

        batch: encoder_input_tokens [B, S]; where packed also encoder_segment_ids [B, S]. Other keys are ignored.
        """
        modules = self.with_parameters(params)
        dropout = Dropout(self.config.dropout_rate, dropout_key)
        P, segment_ids = self.config.prompt_tokens, batch.get("encoder_segment_ids")
        tokens = prepend_prompt(batch["encoder_input_tokens"], P, segment_ids)
        encoded = modules.encoder(soft_prompt_embed(modules), tokens, segment_ids, dropout.at("encoder")).states
        head = functools.partial(to_logits, self.config, modules.token_embedder, modules.logits_dense)
        return Outputs(encoded[:, P:], head)

    def flops_per_example(self, lengths: Mapping[str, int]) -> float:
        """See `Model.flops_per_example`. lengths: {"inputs": S, "targets": S}."""
        S = lengths["inputs"]
        flops, config, length = LayerFlops(self.config), self.config, S + self.config.prompt_tokens
        encoder = flops.self_attention_and_mlp(length, config.num_encoder_layers, config.windows.encoder)
        return 3.0 * (encoder + config.num_encoder_layers * flops.global_tokens(length) + flops.output(S))
