"""T5's attention: logits are not scaled (initial query weights are instead); position biases and masks are added.
Also the variants of later models (`T5Config.beyond_t5`).

With long inputs, most memory goes to the logits of all pairs of positions. By chunks of queries
(`T5Config.attention_chunk_size`), only a part of them exists at a time, in the forward and in the backward pass. With a
window, by blocks, only logits of nearby positions are computed: time and memory grow linearly with the length.
Shapes: B batch, S keys, Q queries, D emb, H heads, K head_dim.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.nn import initializers

from t5xpg.models.attention.biases import (
    Bias,
    BlockedBias,
    ChunkedBias,
    DenseBias,
    LocalOrGlobalBias,
    join_queries,
    split_queries,
)  # fmt: skip
from t5xpg.models.attention.rotary import Rotation
from t5xpg.models.config import T5Config
from t5xpg.models.layers import OFF, Dense, Dropout, Initializer, RMSNorm, named_key
from t5xpg.models.matmul import einsum

PER_QUERY = "per query"  # the name of what a softmax keeps of each query, for `jax.checkpoint`


class Projections(NamedTuple):
    """What attention reads: queries [B, Q, H, K], keys and values [B, S, H, K]."""

    queries: jax.Array
    keys: jax.Array
    values: jax.Array


def attend_by_chunks(
    projections: Projections, bias: ChunkedBias, dropout: Dropout, softcap: float | None = None
) -> jax.Array:
    """As `attend`, one chunk of queries after another; each chunk is computed again in the backward pass."""
    queries, keys, values = projections
    values = _with_dropout(values, dropout)
    # float32 outside of the loop: the gradients of keys and values are summed over the chunks in this dtype
    wide_keys, wide_values = keys.astype(jnp.float32), values.astype(jnp.float32)

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(PER_QUERY))
    def attend_chunk(chunk: tuple[jax.Array, jax.Array, jax.Array | None]) -> jax.Array:
        number, chunk_queries, segments = chunk
        rows = Projections(chunk_queries, wide_keys.astype(keys.dtype), wide_values.astype(values.dtype))
        return attend_dense(rows, bias.chunk_bias(number, segments), OFF, softcap)

    numbers = jnp.arange(bias.number, dtype=jnp.int32)
    mixed = lax.map(attend_chunk, (numbers, split_queries(queries, bias.size), bias.segments))
    return join_queries(mixed, queries.shape[1])


def _with_dropout(values: jax.Array, dropout: Dropout) -> jax.Array:
    """values [B, S, H, K] with dropout of the attention weights, which drops a key for all queries alike."""
    if not dropout.active:
        return values
    B, S, H, _ = values.shape
    scales = dropout(jnp.ones((B, H, 1, S), jnp.float32))
    return values * jnp.transpose(scales, (0, 3, 1, 2)).astype(values.dtype)


class SideInputs(NamedTuple):
    """The global tokens that all queries of a row see besides their window ("side inputs" in LongT5): keys and values
    [B, G, H, K], bias [B, 1 or H, Q, G]."""

    keys: jax.Array
    values: jax.Array
    bias: jax.Array


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """cap tanh(x / cap), between -cap and cap (Gemma 2, arXiv 2408.00118, section 2); x for None."""
    return x if cap is None else cap * jnp.tanh(x / cap)


_attention_init: Initializer = initializers.variance_scaling(1.0, "fan_in", "normal")


@functools.cache
def _query_init(head_dim: int) -> Initializer:
    """The initialiser of query weights: it divides by sqrt(K), in place of dividing the attention logits."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
        return _attention_init(key, shape, dtype) / math.sqrt(head_dim)

    return init


@jax.custom_vjp
def add_shared_bias(logits: jax.Array, bias: jax.Array) -> jax.Array:
    """logits [B, H, Q, S] + bias [1, H, Q, S], whose gradient is summed by `_summed_over_batch`."""
    return logits + bias


add_shared_bias.defvjp(
    lambda logits, bias: (logits + bias, None), lambda _, gradient: (gradient, _summed_over_batch(gradient))
)


def _summed_over_batch(x: jax.Array) -> jax.Array:
    """[B, H, Q, S] -> [1, H, Q, S], written as a product with a row of ones: on CPUs this reads each number once, while
    XLA's reduction over the first axis takes thirty times as long."""
    ones = jnp.ones((1, x.shape[0]), x.dtype)
    return jnp.einsum("ob,bhqs->ohqs", ones, x, precision=lax.Precision.HIGHEST)


class Attention(nnx.Module):
    """Multi-head attention without biases in its projections; keys and values can be cached (`project_keys_values`)."""

    def __init__(self, key: jax.Array, config: T5Config, source_dim: int | None = None) -> None:
        """source_dim: the width of the states that keys and values are made from, if it is not emb_dim."""
        D, H, K = config.emb_dim, config.num_heads, config.head_dim
        E = D if source_dim is None else source_dim
        G = config.heads.num_kv_heads or H
        self.num_heads = H
        self.head_dim = K
        self.softcap = config.heads.logit_softcap
        self.float32_logits = config.float32_attention_logits
        self.query = Dense(named_key(key, "query"), (D, H * K), ("embed", "joined_kv"), _query_init(K))
        self.key = Dense(named_key(key, "key"), (E, G * K), ("embed", "joined_kv"), _attention_init)
        self.value = Dense(named_key(key, "value"), (E, G * K), ("embed", "joined_kv"), _attention_init)
        self.out = Dense(named_key(key, "out"), (H * K, D), ("joined_kv", "embed"), _attention_init)
        self.query_norm, self.key_norm = (RMSNorm(K, "kv") if config.heads.qk_norm else None for _ in range(2))

    def project_queries(self, x: jax.Array, rotation: Rotation | None = None) -> jax.Array:
        """[..., D] -> [..., H, K]. rotation: of the queries' positions."""
        queries = self._split_heads(self.query(x))
        if self.query_norm is not None:
            queries = self.query_norm(queries) / math.sqrt(self.head_dim)
        return queries if rotation is None else rotation(queries)

    def project_keys_values(self, x: jax.Array, rotation: Rotation | None = None) -> tuple[jax.Array, jax.Array]:
        """[B, S, D] (or source_dim) -> keys and values, each [B, S, G, K]. rotation: of the keys' positions."""
        keys = self._split_heads(self.key(x))
        if self.key_norm is not None:
            keys = self.key_norm(keys)
        return keys if rotation is None else rotation(keys), self._split_heads(self.value(x))

    def _for_logits(self, queries: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (queries.astype(jnp.float32), keys.astype(jnp.float32)) if self.float32_logits else (queries, keys)

    def _split_heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], -1, self.head_dim)

    def __call__(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        bias: Bias | LocalOrGlobalBias,
        dropout: Dropout,
        rotation: Rotation | None = None,
        side: SideInputs | None = None,
    ) -> jax.Array:
        """x [B, Q, D], keys and values [B, S, G, K] -> [B, Q, D]. rotation: of queries. side: only with BlockedBias."""
        queries, keys = self._for_logits(self.project_queries(x, rotation), keys)
        projections = Projections(queries, *(repeat_heads(part, self.num_heads, axis=2) for part in (keys, values)))
        if side is not None:
            assert isinstance(bias, BlockedBias)
            repeated = [repeat_heads(part, self.num_heads, axis=2) for part in side[:2]]
            side = side._replace(keys=repeated[0], values=repeated[1])
            mixed = attend_by_blocks(projections, bias, dropout, self.softcap, side)
        else:
            mixed = attend(projections, bias, dropout, self.softcap)
        return self.out(mixed.reshape(*mixed.shape[:-2], self.num_heads * self.head_dim))

    def weights(self, x: jax.Array, keys: jax.Array, bias: DenseBias, rotation: Rotation | None = None) -> jax.Array:
        """x [B, Q, D], keys [B, S, G, K] -> the attention weights [B, H, Q, S] float32."""
        queries, keys = self._for_logits(self.project_queries(x, rotation), repeat_heads(keys, self.num_heads, axis=2))
        return jax.nn.softmax(dense_logits(queries, keys, bias, self.softcap), axis=-1)


def attend(
    projections: Projections, bias: Bias | LocalOrGlobalBias, dropout: Dropout, softcap: float | None = None
) -> jax.Array:
    """The values mixed by attention [B, Q, H, K]."""
    if isinstance(bias, LocalOrGlobalBias):
        mix = functools.partial(attend, projections, dropout=dropout, softcap=softcap)
        return lax.cond(bias.is_local, lambda: mix(bias=bias.local), lambda: mix(bias=bias.whole))
    algorithm: Any = {DenseBias: attend_dense, ChunkedBias: attend_by_chunks, BlockedBias: attend_by_blocks}[type(bias)]
    return algorithm(projections, bias, dropout, softcap)


def attend_by_blocks(
    projections: Projections,
    bias: BlockedBias,
    dropout: Dropout,
    softcap: float | None = None,
    side: SideInputs | None = None,
) -> jax.Array:
    """As `attend`, for a window: each block of queries becomes a row of its own, with the keys that its queries see."""
    blocks = bias.blocks
    if side is not None:
        side = side._replace(values=_with_dropout(side.values, dropout.at("side_inputs")))

    # computed again in the backward pass: keeping it would take, for each query, as much as all keys of its block
    @jax.checkpoint
    def attend_blocks(projections: Projections, dense: DenseBias, side: SideInputs | None) -> jax.Array:
        queries, keys, values = projections
        rows = Projections(blocks.split_queries(queries), blocks.split_keys(keys), blocks.split_keys(values))
        if side is None or side.keys.shape[1] == 0:
            return blocks.join(attend_dense(rows, dense, OFF, softcap), queries.shape[1])
        near = dense_logits(rows.queries, rows.keys, dense, softcap)  # [B * number, H, size, keys]
        far = soft_cap(jnp.einsum("bqhk,bghk->bhqg", queries, side.keys).astype(jnp.float32), softcap)
        far = far + side.bias  # [B, H, Q, G]

        # one softmax over both, without a copy of either: only numbers per query move between rows and blocks
        def reduce_both(reduction: Any) -> tuple[jax.Array, jax.Array]:  # [B, Q, H, 1] of both
            near_result, far_result = (jnp.swapaxes(reduction(x, axis=-1, keepdims=True), 1, 2) for x in (near, far))
            return blocks.join(near_result, queries.shape[1]), far_result

        largest = lax.stop_gradient(jnp.maximum(*reduce_both(jnp.max)))
        near = jnp.exp(near - jnp.swapaxes(blocks.split_queries(largest), 1, 2))
        far = jnp.exp(far - jnp.swapaxes(largest, 1, 2))
        total = jnp.add(*reduce_both(jnp.sum))
        mixed = blocks.join(_mix(near, rows.values), queries.shape[1]) + _mix(far, side.values)
        return (mixed / total).astype(values.dtype)

    projections = projections._replace(values=_with_dropout(projections.values, dropout))
    return attend_blocks(projections, bias.dense, side)


def _mix(weights: jax.Array, values: jax.Array) -> jax.Array:
    """weights [B, H, Q, S], values [B, S, H, K] -> [B, Q, H, K] float32."""
    weights = weights.astype(values.dtype)
    return jnp.einsum("bhqs,bshk->bqhk", weights, values, preferred_element_type=jnp.float32)


def repeat_heads(x: jax.Array, heads: int, axis: int) -> jax.Array:
    """Keys or values of G heads at `axis`, each repeated for heads / G heads of queries (Ainslie et al. 2023)."""
    return x if x.shape[axis] == heads else jnp.repeat(x, heads // x.shape[axis], axis=axis)


def dense_logits(queries: jax.Array, keys: jax.Array, bias: DenseBias, softcap: float | None = None) -> jax.Array:
    """queries [B, Q, H, K], keys [B, S, H, K] -> [B, H, Q, S] float32, biases and masks added."""
    logits = einsum("bqhk,bshk->bhqs", queries, keys)
    # float32 from here to the weights: it costs nothing where it is fused with the softmax, and the gradient of the
    # position biases, a sum over all rows, loses no precision
    logits = soft_cap(logits.astype(jnp.float32), softcap)
    if bias.position is not None:
        logits = add_shared_bias(logits, bias.position)
    return logits + bias.mask


def attend_dense(
    projections: Projections, bias: DenseBias, dropout: Dropout, softcap: float | None = None
) -> jax.Array:
    """As `attend`, for all pairs of positions."""
    queries, keys, values = projections
    logits = dense_logits(queries, keys, bias, softcap)
    # the softmax divides after the mixing, where a query has K numbers instead of S: this saves a pass over all pairs
    # of positions in the forward pass, and one in the backward pass
    largest = checkpoint_name(lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True)), PER_QUERY)
    weights = jnp.exp(logits - largest)
    if values.dtype == jnp.float16:  # sums of undivided weights can exceed its largest number, 65,504
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        return jnp.einsum("bhqs,bshk->bqhk", dropout(weights.astype(values.dtype)), values)
    total = checkpoint_name(jnp.swapaxes(jnp.sum(weights, axis=-1), 1, 2)[..., None], PER_QUERY)  # [B, Q, H, 1]
    mixed = checkpoint_name(einsum("bhqs,bshk->bqhk", dropout(weights.astype(values.dtype)), values), PER_QUERY)
    return (mixed.astype(jnp.float32) / total).astype(values.dtype)
