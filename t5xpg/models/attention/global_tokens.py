"""LongT5's transient global tokens (Guo et al. 2022, section 3.1.2): sums of blocks, which every position sees.

Each layer computes them again from its own inputs. A block has a fixed number of positions of one text, counted from
the text's beginning; the rest at its end goes to the last block, and a text shorter than a block has no global token.
Blocks are numbered through the row, in packed rows too.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from t5xpg.models.attention.biases import as_bias
from t5xpg.models.attention.relative_positions import RelativePositionBias
from t5xpg.models.attention.rotary import positions_in_segments


class GlobalTokens(NamedTuple):
    """The global tokens of rows [B, S], with room for G = S // size of them.

    numbers: of the block in which a position lies, [B, S] int32; -1 for no block. bias: added to the logits of a
    position's query with the global tokens' keys, [B, 1 or H, S, G] float32.
    """

    numbers: jax.Array
    bias: jax.Array

    def block_sums(self, x: jax.Array) -> jax.Array:
        """x [B, S, D] -> the sum of each block [B, G, D]."""
        is_in = self.numbers[..., None] == jnp.arange(self.bias.shape[-1], dtype=jnp.int32)
        return jnp.einsum("bsg,bsd->bgd", is_in.astype(x.dtype), x)


def global_tokens(
    tokens: jax.Array, segment_ids: jax.Array | None, size: int, relpos_bias: RelativePositionBias | None
) -> GlobalTokens:
    """The global tokens of tokens [B, S], packed or not, in blocks of `size`. relpos_bias: for distances of blocks."""
    G = tokens.shape[1] // size
    segments = jnp.where(tokens > 0, 1 if segment_ids is None else segment_ids, 0)
    # a block begins only where its last position belongs to the same text
    ends = jnp.pad(segments[:, size - 1 :], ((0, 0), (0, size - 1)))[:, : tokens.shape[1]]
    begins = (positions_in_segments(segments) % size == 0) & (ends == segments) & (segments > 0)
    last = lax.cummax(jnp.where(begins, jnp.arange(tokens.shape[1], dtype=jnp.int32), -1), axis=1)
    is_in = (last >= 0) & (jnp.take_along_axis(segments, jnp.maximum(last, 0), axis=1) == segments)
    numbers = jnp.where(is_in, jnp.cumsum(begins, axis=1, dtype=jnp.int32) - 1, -1)
    is_of = begins[..., None] & (numbers[..., None] == jnp.arange(G, dtype=jnp.int32))
    of_blocks = jnp.sum(jnp.where(is_of, segments[..., None], 0), axis=1)  # 0 where there is no block
    bias = as_bias(segments[:, :, None] == of_blocks[:, None, :])[:, None]
    if relpos_bias is not None:
        of_numbers = relpos_bias.table(bidirectional=True)(G, G)[0]
        by_number = jnp.take(of_numbers, jnp.maximum(numbers, 0), axis=1, mode="clip")  # [H, B, S, G]
        bias = bias + jnp.swapaxes(by_number, 0, 1)
    return GlobalTokens(numbers, bias)
