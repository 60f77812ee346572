"""Masked language models: every mask becomes the most probable token of its place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from t5xpg.decoding.largest import first_of_the_largest
from t5xpg.decoding.protocol import Decoded
from t5xpg.decoding.scoring import Scorable


def fill_masks(model: Scorable, params: Any, inputs: jax.Array, mask_id: int) -> Decoded:
    """inputs [B, S] int32, padded with 0 -> the same with a token in place of every mask, each chosen by itself.

    Gives [B, 1, S], without scores.
    """
    chosen = first_of_the_largest(model.logits(params, {"encoder_input_tokens": inputs}))
    return Decoded(jnp.where(inputs == mask_id, chosen, inputs)[:, None], None)
