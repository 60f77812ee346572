"""`Decodable`, the interface of models that can be decoded; `Decoded`, the result; and the limits of all searches.

`inputs` are the given tokens of each row: those of the encoder, or the prompt that a decoder-only model continues.
Such a model reads the prompt in `init_cache`, returns its last token from `first_tokens`, and counts `step` from there.
Shapes: B batch, N beams or samples, S length of the inputs, T length decoded, V vocab.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

Params = Any
Cache = Any  # a pytree of arrays whose shapes stay as they are

# The score of an empty place for a sequence, and the logit of a token that must not follow. It is finite, so that sums
# with it can be compared and are not NaN.
NONE = -1e9
# How many tokens are encoded at a time on CPUs. What attention needs for them stays in the processor's caches, and the
# products are wide enough; all at once, 32 rows of 256 or 512 tokens take two to three times as long.
_CPU_TOKENS = 512


class Decodable(Protocol):
    """A model that gives the logits of one position after another. All methods are pure."""

    def init_cache(
        self,
        params: Params,
        inputs: jax.Array,
        max_decode_length: int,
        /,
        rows: int | None = None,
        beams: int | None = None,
        reordered: bool = False,
    ) -> Cache:
        """A cache of inputs [B, S] int32, padded with 0, with room for max_decode_length positions after them.

        rows: the number of rows of the inputs that are read at a time; None: all. beams: continuations of each row;
        None: one, and the other methods then have no axis N. What all continuations of a row share (its inputs) should
        be stored once. reordered: True if `reorder_beams` will be called on this cache.
        """

    def first_tokens(self, inputs: jax.Array, /) -> jax.Array:
        """[B] int32: the tokens for `decode_step` at step 0."""

    def decode_step(
        self, params: Params, cache: Cache, tokens: jax.Array, step: jax.Array, /
    ) -> tuple[jax.Array, Cache]:
        """Logits [B, V] or [B, N, V] float32 of the next tokens after `tokens` [B] or [B, N] int32, and the new cache.

        step: int32 scalar, 0 to max_decode_length - 1, for all rows.
        """

    def reorder_beams(self, cache: Cache, parents: jax.Array, /) -> Cache:
        """The cache in which beam n of a row continues the former beam parents[:, n]; parents: [B, N] int32."""


class Decoded(NamedTuple):
    """The result of decoding: for each row one or more sequences, the best first.

    tokens: [B, N, T] int32, each up to its end token (unless it is as long as allowed), padding after it.
    scores: [B, N] float32; None where none are computed (greedy). Rows that are padding throughout have padding and the
    score 0.
    """

    tokens: jax.Array
    scores: jax.Array | None


def rows_at_a_time(inputs: jax.Array) -> int | None:
    """The number of rows of the inputs [B, S] that a model should read at a time; None for all."""
    return max(1, _CPU_TOKENS // inputs.shape[1]) if jax.default_backend() == "cpu" else None


def length_limits(inputs: jax.Array, max_decode_length: int, extra_length: int | None) -> jax.Array:
    """[B, S] -> [B] int32: the most tokens, the end included, of the continuation of each row.

    0 for rows that are padding throughout, as the last batch of an evaluation has: they have ended before they begin.
    """
    lengths = jnp.sum((inputs != 0).astype(jnp.int32), axis=1)
    longest = max_decode_length if extra_length is None else jnp.minimum(lengths + extra_length, max_decode_length)
    return jnp.where(lengths == 0, 0, longest).astype(jnp.int32)
