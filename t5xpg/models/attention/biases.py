"""Masks and biases of relative positions, as they are added to attention logits, and the choice of the attention
algorithm: `AttentionPattern.make_bias` chooses one of three forms of bias, and `attend` computes by that form.

`DenseBias`: all pairs of positions, made once for all layers of a stack. `ChunkedBias`: only ids and segments [B, S]
and one bias per distance are kept; the pairs of one chunk of queries exist while that chunk is computed. `BlockedBias`,
for windows: only pairs of a block of queries with the keys that one of them sees.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from t5xpg.models.attention.relative_positions import PositionTable, toeplitz

# T5X's bias for masked positions: exp() of it is 0, and it is finite, so that a row in which everything is masked
# (a padding row) has no NaN
MASKED = -1e10


def as_bias(visible: jax.Array) -> jax.Array:
    """Boolean -> 0 where visible, MASKED elsewhere, float32."""
    return jnp.where(visible, jnp.float32(0.0), jnp.float32(MASKED))


def visible_keys(
    key_tokens: jax.Array, query_segments: jax.Array | None = None, key_segments: jax.Array | None = None
) -> jax.Array:
    """Boolean [B, 1, 1 or Q, S]: keys [B, S] that are not padding (id 0) and, where packed, in the query's segment."""
    visible = (key_tokens > 0)[:, None, None, :]
    if query_segments is not None and key_segments is not None:
        visible = visible & (query_segments[:, None, :, None] == key_segments[:, None, None, :])
    return visible


@functools.partial(jax.tree_util.register_dataclass, data_fields=["mask", "position"], meta_fields=[])
@dataclass(frozen=True)
class DenseBias:
    """mask: 0 or MASKED, broadcast to [B, H, Q, S]; position: [1, H, Q, S] or None; both float32."""

    mask: jax.Array
    position: jax.Array | None = None


@dataclass(frozen=True)
class AttentionPattern:
    """The keys that each query may see, and the biases of their distances.

    key_tokens: [B, S], padding where 0. query_segments [B, Q] and key_segments [B, S]: where rows are packed.
    is_causal: a query sees no key after its own position, except within the prefix. prefix: [B, S], where queries and
    keys are the same positions: those that are not 0 see each other, whichever comes first. positions: None where
    distances add nothing, as in cross attention. window: None for all positions. first: the index of the key at the
    first query's position.
    """

    queries: int
    key_tokens: jax.Array
    query_segments: jax.Array | None
    key_segments: jax.Array | None
    is_causal: bool = False
    positions: PositionTable | None = None
    prefix: jax.Array | None = None
    window: tuple[int, int] | None = None
    first: int = 0

    def make_bias(self, chunk_size: int | None, by_blocks: bool | None = None) -> Bias:
        """By blocks where a window makes this fewer pairs; by chunks where there are more than `chunk_size` queries;
        else dense. by_blocks: True or False decides on blocks for a window, whatever the length."""
        if by_blocks is not False and self.window is not None:
            behind, ahead = self.window
            if self.is_causal and self.prefix is None:
                ahead = 0
            blocks = Blocks.of_window(self.queries, behind, ahead)
            if by_blocks or self.queries > blocks.keys:
                return self._by_blocks(blocks)
        if chunk_size is None or self.queries <= chunk_size:
            return self._dense()
        return self._by_chunks(chunk_size)

    @property
    def visible(self) -> jax.Array:
        """Boolean [B, 1, 1 or Q, S]: the keys that each query sees."""
        return _visible_mask(self, self.queries, self.query_segments, self.first)

    def _dense(self) -> DenseBias:
        keys = self.key_tokens.shape[1]
        position = None if self.positions is None else self.positions(self.queries, keys, self.first)
        return DenseBias(as_bias(self.visible), position)

    def _by_blocks(self, blocks: Blocks) -> BlockedBias:
        rows = replace(
            self, queries=blocks.size, key_tokens=blocks.split_keys(self.key_tokens),
            query_segments=jax.tree.map(blocks.split_queries, self.query_segments),
            key_segments=jax.tree.map(blocks.split_keys, self.key_segments),
            prefix=jax.tree.map(blocks.split_keys, self.prefix), first=blocks.behind,
        )  # fmt: skip
        return BlockedBias(blocks, rows._dense())

    def _by_chunks(self, size: int) -> ChunkedBias:
        number = -(-self.queries // size)
        by_distance = None
        if self.positions is not None:
            by_distance = self.positions.by_distance(number * size, self.key_tokens.shape[1])
        segments = jax.tree.map(functools.partial(split_queries, size=size), self.query_segments)
        return ChunkedBias(
            size, number, self.key_tokens, segments, self.key_segments, self.is_causal, by_distance, self.prefix,
            None if self.window is None else jnp.asarray(self.window, jnp.int32),
        )  # fmt: skip


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["key_tokens", "segments", "key_segments", "by_distance", "prefix", "window"],
    meta_fields=["size", "number", "is_causal"],
)
@dataclass(frozen=True)
class ChunkedBias:
    """The biases of `number` chunks of `size` queries; the last one may reach beyond the queries that there are.

    segments: [number, B, size] or None. by_distance: [H, number * size + S - 1] or None. window: [2] int32 or None.
    """

    size: int
    number: int
    key_tokens: jax.Array
    segments: jax.Array | None
    key_segments: jax.Array | None
    is_causal: bool
    by_distance: jax.Array | None
    prefix: jax.Array | None
    window: jax.Array | None = None

    def chunk_bias(self, number: jax.Array, segments: jax.Array | None) -> DenseBias:
        """The bias of one chunk's queries and all keys. number: of the chunk, int32; segments: its own [B, size]."""
        mask = as_bias(_visible_mask(self, self.size, segments, number * self.size))
        if self.by_distance is None:
            return DenseBias(mask)
        keys = self.key_tokens.shape[1]
        start = (self.number - 1 - number) * self.size  # where the chunk's last query and the first key are
        near = lax.dynamic_slice_in_dim(self.by_distance, start, self.size + keys - 1, axis=1)
        return DenseBias(mask, toeplitz(near, self.size, keys)[None])


def _visible_mask(
    pattern: AttentionPattern | ChunkedBias, queries: int, segments: jax.Array | None, first: int | jax.Array
) -> jax.Array:
    """Boolean [B, 1, 1 or queries, S]: the keys that some queries see. segments: of the queries. first: the position
    of the first query. Source of prefixes: make_decoder_mask (t5x/examples/decoder_only/layers.py)."""
    visible, keys = visible_keys(pattern.key_tokens, segments, pattern.key_segments), pattern.key_tokens.shape[1]
    distances = (first + jnp.arange(queries, dtype=jnp.int32))[:, None] - jnp.arange(keys, dtype=jnp.int32)
    if pattern.window is not None:
        behind, ahead = pattern.window
        visible = visible & (distances <= behind) & (-distances <= ahead)
    if pattern.is_causal:
        allowed = distances[None, None] >= 0
        if pattern.prefix is not None:  # query and key are both in it
            prefix = pattern.prefix > 0
            in_prefix = lax.dynamic_slice_in_dim(jnp.pad(prefix, ((0, 0), (0, queries))), first, queries, axis=1)
            allowed = allowed | (in_prefix[:, None, :, None] & prefix[:, None, None, :])
        visible = allowed & visible
    return visible


@dataclass(frozen=True)
class Blocks:
    """Rows in blocks of `size` queries, each with the keys from `behind` its first query to `ahead` of its last.

    As in LongT5 (Guo et al. 2022, section 3.1) and Longformer (Beltagy et al. 2020), the keys of a block lie in that
    block and its two neighbours. The blocks of all rows lie in the first axis: B times `number`.
    """

    number: int
    size: int
    behind: int
    ahead: int

    @classmethod
    def of_window(cls, queries: int, behind: int, ahead: int) -> Blocks:
        """The blocks for rows of `queries` queries. On CPUs, sizes below 64 and above the window are slower."""
        size = max(64, 1 + behind, 1 + ahead)
        return cls(-(-queries // size), size, behind, ahead) if queries > size else cls(1, queries, 0, 0)

    @property
    def keys(self) -> int:
        """The number of keys of a block."""
        return self.size + self.behind + self.ahead

    def pairs(self, queries: int) -> int:
        """The number of pairs of positions of a row: those of its blocks, or of all positions if that is fewer."""
        return min(queries * queries, self.number * self.size * self.keys)

    def split_queries(self, x: jax.Array) -> jax.Array:
        """[B, Q, ...] -> [B * number, size, ...], filled up with zeros."""
        return self._padded(x, 0).reshape(-1, self.size, *x.shape[2:])

    def split_keys(self, x: jax.Array) -> jax.Array:
        """[B, Q, ...] -> [B * number, keys, ...], filled up with zeros."""
        apart = self._padded(x, 1).reshape(x.shape[0], self.number + 2, self.size, *x.shape[2:])
        before, after = apart[:, :-2, self.size - self.behind :], apart[:, 2:, : self.ahead]
        return jnp.concatenate([before, apart[:, 1:-1], after], axis=2).reshape(-1, self.keys, *x.shape[2:])

    def join(self, x: jax.Array, queries: int) -> jax.Array:
        """[B * number, size, ...] -> [B, queries, ...]: the inverse of `split_queries`."""
        return x.reshape(-1, self.number * self.size, *x.shape[2:])[:, :queries]

    def _padded(self, x: jax.Array, margin: int) -> jax.Array:
        """[B, Q, ...] -> [B, (number + 2 margin) * size, ...]"""
        missing = self.number * self.size - x.shape[1]
        padding = [(0, 0), (margin * self.size, margin * self.size + missing), *[(0, 0)] * (x.ndim - 2)]
        return jnp.pad(x, padding)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["dense"], meta_fields=["blocks"])
@dataclass(frozen=True)
class BlockedBias:
    """The biases of blocks of rows. dense: a bias in which each block is a row, [B * number, H, size, keys]."""

    blocks: Blocks
    dense: DenseBias


Bias = DenseBias | ChunkedBias | BlockedBias


class LocalOrGlobalBias(NamedTuple):
    """The bias of a layer in a scan: `local`, by blocks, if the layer has a window (`is_local`), else `whole`."""

    is_local: jax.Array
    local: BlockedBias
    whole: DenseBias | ChunkedBias


def split_queries(x: jax.Array, size: int) -> jax.Array:
    """[B, Q, ...] -> [chunks, B, size, ...], filled up with zeros."""
    B, queries = x.shape[:2]
    number = -(-queries // size)
    padding = [(0, 0)] * x.ndim
    padding[1] = (0, number * size - queries)
    return jnp.moveaxis(jnp.pad(x, padding).reshape(B, number, size, *x.shape[2:]), 1, 0)


def join_queries(x: jax.Array, queries: int) -> jax.Array:
    """[chunks, B, size, ...] -> [B, queries, ...]: the inverse of `split_queries`."""
    number, B, size = x.shape[:3]
    return jnp.moveaxis(x, 0, 1).reshape(B, number * size, *x.shape[3:])[:, :queries]
