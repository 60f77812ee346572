"""Soft prompts: embeddings that are parameters and stand before those of the tokens (Lester et al. 2021).

A prompt makes the rows that a model reads longer; positions and masks follow from these rows as from any others.
Shapes: B batch, P prompt, S length, D emb, V vocab.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from t5xpg.models import activation_sharding
from t5xpg.models.config import T5Config
from t5xpg.models.layers import Embed, embedding_init, named_key, parameter


class Prompt(nnx.Module):
    """Embeddings [P, D] that stand before those of the tokens of every row: a soft prompt."""

    def __init__(self, key: jax.Array, length: int, features: int) -> None:
        shape, axes = (length, features), ("length", "embed")
        self.embedding = parameter(named_key(key, "embedding"), embedding_init, shape, axes)


@dataclass(frozen=True)
class SoftPromptEmbed:
    """Embeds rows of ids in which the first `prompt_tokens` ids, any but 0, stand for the prompt."""

    embed: Embed
    prompt: Prompt

    def __call__(self, ids: jax.Array, dtype: jnp.dtype, segment_ids: None = None) -> jax.Array:
        """[B, P + S] int32 -> [B, P + S, D] in dtype."""
        prompt = self.prompt.embedding[...].astype(dtype)
        P, D = prompt.shape
        rows = jnp.broadcast_to(prompt, (ids.shape[0], P, D))
        return jnp.concatenate([activation_sharding.rows(rows, "embed"), self.embed(ids[:, P:], dtype)], axis=1)


def make_prompt(key: jax.Array, config: T5Config) -> Prompt | None:
    """The prompt of a model; None if it has none. key: of the model."""
    length = config.prompt_tokens
    return Prompt(named_key(key, "prompt"), length, config.emb_dim) if length else None


def prepend_prompt(tokens: jax.Array, length: int, segment_ids: jax.Array | None = None) -> jax.Array:
    """[B, S] int32 -> [B, P + S]: with positions for a prompt before them, which are not padding.

    segment_ids: of packed rows, which cannot have a prompt.
    """
    assert segment_ids is None or not length, "each text of a packed row would need the prompt"
    return jnp.pad(tokens, ((0, 0), (length, 0)), constant_values=1) if length else tokens


def soft_prompt_embed(modules: Any) -> Embed | SoftPromptEmbed:
    """The embedding for the tokens that `prepend_prompt` returns."""
    embed = modules.token_embedder
    prompt = getattr(modules, "prompt", None)  # an architecture of one's own need not have any
    return embed if prompt is None else SoftPromptEmbed(embed, prompt)
