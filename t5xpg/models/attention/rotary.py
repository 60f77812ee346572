"""Rotary positions (Su et al. 2021): queries and keys are turned by their positions; products depend on distances."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from t5xpg.models.config import T5Config


class Rotation(NamedTuple):
    """The angles of some positions: cos and sin [..., 1, K / 2] float32, the 1 for heads."""

    cos: jax.Array
    sin: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., H, K], turned: number k of the first half with number k of the second one."""
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        turned = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def rotation(config: T5Config, positions: jax.Array, has_window: bool) -> Rotation | None:
    """The rotation of positions [...] int32 in layers with or without a window; None without rotary positions."""
    if (rotary := config.rotary) is None:
        return None
    base, scale = (rotary.local_base or rotary.base, 1.0) if has_window else (rotary.base, rotary.scale)
    frequencies = base ** (-jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim) / scale
    angles = (positions[..., None].astype(jnp.float32) * frequencies)[..., None, :]
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def source_lengths(tokens: jax.Array) -> jax.Array:
    """[B, S] -> [B] int32: the lengths up to the last token that is not padding."""
    positions = jnp.arange(1, tokens.shape[1] + 1, dtype=jnp.int32)
    return jnp.max(jnp.where(tokens != 0, positions, jnp.int32(0)), axis=1)


def positions_in_segments(segments: jax.Array) -> jax.Array:
    """Segments [B, S] of packed rows -> positions [B, S] int32, counted from 0 in each segment."""
    positions = jnp.broadcast_to(jnp.arange(segments.shape[1], dtype=jnp.int32), segments.shape)
    is_first = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return positions - lax.cummax(jnp.where(is_first, positions, 0), axis=1)


def source_positions(tokens: jax.Array, segments: jax.Array | None) -> jax.Array:
    """The positions of a source [B, S]: [S] int32, or [B, S] if packed."""
    return jnp.arange(tokens.shape[1], dtype=jnp.int32) if segments is None else positions_in_segments(segments)


def decoder_positions(
    tokens: jax.Array, length: int, segments: jax.Array | None, source_segments: jax.Array | None
) -> jax.Array:
    """[B, T] int32: a decoder's positions, which continue where the source [B, S] of the row, or segment, ends.

    length: T. segments [B, T] and source_segments [B, S]: where rows are packed.
    """
    if segments is None or source_segments is None:
        return source_lengths(tokens)[:, None] + jnp.arange(length, dtype=jnp.int32)
    sources = jnp.sum(segments[:, :, None] == source_segments[:, None, :], axis=-1, dtype=jnp.int32)
    return sources + positions_in_segments(segments)
