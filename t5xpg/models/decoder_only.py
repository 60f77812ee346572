"""T5's decoder alone, without cross attention: a language model, causal or with a prefix that sees all of itself."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import jax
from flax import nnx

from t5xpg.models.config import ENCODER_SETTINGS, TWO_STACK_SETTINGS, T5Config
from t5xpg.models.decoding.prompt_decoder import PromptDecoder
from t5xpg.models.layers import Dropout, named_key, token_embedder
from t5xpg.models.model import Batch, LayerFlops, Model, Outputs, Params
from t5xpg.models.soft_prompt import make_prompt, prepend_prompt, soft_prompt_embed
from t5xpg.models.stacks import DecoderOnly


class DecoderOnlyTransformer(nnx.Module):
    """The modules of DecoderOnlyModel."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        config.require_t5("A DecoderOnlyModel", set(config.beyond_t5) - TWO_STACK_SETTINGS - ENCODER_SETTINGS)
        self.token_embedder = token_embedder(named_key(key, "token_embedder"), config)
        self.prompt = make_prompt(key, config)
        self.decoder = DecoderOnly(named_key(key, "decoder"), config)


@dataclass(frozen=True)
class DecoderOnlyModel(Model):
    """A language model of `num_decoder_layers` layers (T5X: t5x/examples/decoder_only; Raffel et al. 2020, 3.2.1).

    With batches of `LMFeatureConverter`, each position sees itself and those before it. With `PrefixLMFeatureConverter`
    the inputs see all of the inputs, unless `inputs_bidirectional_attention` (T5X: models.DecoderOnlyModel) is False.
    Both have the same parameters. `num_encoder_layers` has no meaning.
    """

    inputs_bidirectional_attention: bool = True

    feature_converters = ("LMFeatureConverter", "PrefixLMFeatureConverter")

    @staticmethod
    def modules(key: jax.Array, config: T5Config) -> nnx.Module:
        return DecoderOnlyTransformer(key, config)

    def outputs(self, params: Params, batch: Batch, *, dropout_key: jax.Array | None = None) -> Outputs:
        """The states [B, T, D] of every target position, given the targets before it.

        batch: decoder_input_tokens and decoder_target_tokens [B, T]; for a prefix LM also decoder_causal_attention
        [B, T]; where packed also decoder_segment_ids [B, T]. Other keys are ignored.
        """
        modules = self.with_parameters(params)
        dropout = Dropout(self.config.dropout_rate, dropout_key)
        P, segment_ids = self.config.prompt_tokens, batch.get("decoder_segment_ids")
        prefix = batch.get("decoder_causal_attention") if self.inputs_bidirectional_attention else None
        states = modules.decoder(
            soft_prompt_embed(modules),
            prepend_prompt(self.with_start_ids(batch["decoder_input_tokens"]), P, segment_ids),
            prepend_prompt(batch["decoder_target_tokens"], P),
            segment_ids,
            None if prefix is None else prepend_prompt(prefix, P),
            dropout.at("decoder"),
        )
        return Outputs(states[:, P:], functools.partial(modules.decoder.to_logits, modules.token_embedder))

    def for_decoding(self, feature_converter: str) -> PromptDecoder:
        """A model that continues prompts. A prompt sees all of itself if the inputs did in training (prefix LM)."""
        prefix = feature_converter == "PrefixLMFeatureConverter"
        return PromptDecoder(self, sees_itself=prefix and self.inputs_bidirectional_attention)

    def flops_per_example(self, lengths: Mapping[str, int]) -> float:
        """See `Model.flops_per_example`. lengths: {"targets": T}, or {"inputs": S, "targets": T} for a row of S + T."""
        T = sum(lengths.values()) + self.config.prompt_tokens
        flops, config = LayerFlops(self.config), self.config
        behind, sees_ahead = config.windows.decoder, self.inputs_bidirectional_attention and "inputs" in lengths
        window = None if behind is None else (behind, behind if sees_ahead else 0)
        return 3.0 * (
            flops.self_attention_and_mlp(T, config.num_decoder_layers, window) + flops.output(T - config.prompt_tokens)
        )
