"""How probable targets are, given their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from t5xpg.errors import UserError
from t5xpg.losses import cross_entropy_with_logits, token_weights


class Scorable(Protocol):
    """A model that gives the logits of all positions at once."""

    def logits(self, params: Any, batch: Mapping[str, jax.Array], /) -> jax.Array:
        """[B, T, V] float32."""


def score(model: Scorable, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    """The log-likelihood of each row's targets, in nats: [B] float32, as T5X's score_batch.

    batch: what the model's `logits` reads, with decoder_target_tokens [B, T]. Summed over tokens by
    decoder_loss_weights; where there are none, over those that are no padding. No z-loss, no smoothing, no division by
    a length. Raises UserError for packed rows, which hold several examples.
    """
    if packed := sorted(name for name in batch if name.endswith("_segment_ids")):
        raise UserError(f"Scores are of one example a row, and these rows are packed ({packed[0]}): read without PACK.")
    losses, _ = cross_entropy_with_logits(model.logits(params, batch), batch["decoder_target_tokens"])
    return -jnp.sum(losses * token_weights(batch), axis=-1)
