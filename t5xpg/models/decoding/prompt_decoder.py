"""A decoder-only model that continues prompts, position by position: see `kv_cache`.

The prompts of a batch have different lengths, and `step` counts the tokens after them. So the keys and values of a
prompt are kept apart, once for all continuations of its row. The last token of a prompt is the input of step 0. Yet
`init_cache` reads it, too, because in a prefix that sees all of itself the other tokens see it: their keys and values
are kept, and its own are masked there, because step 0 adds them again.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from t5xpg.models.attention.biases import AttentionPattern
from t5xpg.models.attention.geometry import self_geometries
from t5xpg.models.attention.rotary import source_lengths
from t5xpg.models.config import T5Config
from t5xpg.models.decoding import kv_cache
from t5xpg.models.layers import OFF, Embed
from t5xpg.models.model import Model, Params
from t5xpg.models.soft_prompt import SoftPromptEmbed, prepend_prompt, soft_prompt_embed
from t5xpg.models.stacks import DecoderOnly, apply_norm


@dataclass(frozen=True)
class PromptDecoder:
    """The `Decodable` of a decoder-only model.

    sees_itself: True if each position of a prompt sees all of the prompt, as in a prefix LM; False: none after its own.
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
    ) -> kv_cache.Cache:
        """The cache before the first position after the prompts [B, S] int32, which are padded with 0 at their ends."""
        modules = self.model.with_parameters(params)
        prompt_cache = functools.partial(_prompt_cache, modules.decoder, soft_prompt_embed(modules), self.sees_itself)
        return kv_cache.init_cache(
            modules.decoder, prompt_cache, inputs, max_decode_length, rows=rows, beams=beams, reordered=reordered
        )

    def first_tokens(self, inputs: jax.Array) -> jax.Array:
        """[B, S] -> [B] int32: the last token of each prompt; for an empty one, the token that begins every text."""
        return jnp.take_along_axis(_with_start(inputs, self.model.config), source_lengths(inputs)[:, None], axis=1)[
            :, 0
        ]

    def decode_step(
        self, params: Params, cache: kv_cache.Cache, tokens: jax.Array, step: jax.Array
    ) -> tuple[jax.Array, kv_cache.Cache]:
        """The logits of the token after `tokens`, and the cache with `tokens`. step: 0 at the prompt's last token."""
        modules = self.model.with_parameters(params)
        return kv_cache.decode_step(modules.decoder, modules.token_embedder, cache, tokens, step)

    reorder_beams = staticmethod(kv_cache.reorder)


def _with_start(inputs: jax.Array, config: T5Config) -> jax.Array:
    """[B, S] -> [B, S + 1]: the token that every text begins with, before the prompt."""
    return jnp.pad(inputs, ((0, 0), (1, 0)), constant_values=config.decoder_start_token_id)


def _prompt_cache(
    decoder: DecoderOnly, embed: Embed | SoftPromptEmbed, sees_itself: bool, inputs: jax.Array
) -> kv_cache.SourceCache:
    """Each layer's keys and values of the prompts [b, S], after the start token and, if there is one, a soft prompt."""
    soft = decoder.config.prompt_tokens
    tokens = prepend_prompt(_with_start(inputs, decoder.config), soft)
    P = tokens.shape[1]
    last = source_lengths(inputs) + soft
    inside = (jnp.arange(P, dtype=jnp.int32) <= last[:, None]).astype(jnp.int32)
    pattern = AttentionPattern(P, inside, None, None, is_causal=True, prefix=inside if sees_itself else None)
    geometry = self_geometries(decoder.config, pattern, decoder.window, decoder.relpos_bias)
    x = embed(tokens, decoder.dtype)
    layers = {}
    for index, (name, layer) in enumerate(decoder.named_layers()):
        layer_geometry, y = geometry(layer, index), apply_norm(layer, "pre", "self_attention", x)
        layers[name] = kv_cache.source_keys_values(layer.self_attention, y, layer_geometry.keys)
        x = layer(x, layer_geometry, OFF)
    context = decoder.config.ngram_context
    before = jnp.pad(_with_start(inputs, decoder.config), ((0, 0), (context, 0)))
    places = source_lengths(inputs)[:, None] + jnp.arange(context, dtype=jnp.int32)
    return layers, {"last": last, "recent": jnp.take_along_axis(before, places, axis=1)} if context else {"last": last}
