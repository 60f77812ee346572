"""Attention with T5's biases in kernels for GPUs: no array of all pairs of positions, forward or backward.

FlashAttention-2 (Dao 2023, arXiv 2307.08691): a program computes a block of queries, key block by key block, and
corrects the softmax as it goes; the backward pass computes the weights again from the logarithms of their sums. Biases
and masks are made within a tile, from a table of the near distances and the ids of queries and keys. The gradient of
the biases has a kernel of its own: a program sums a tile over the batch, and then over each run of distances that share
a bias (far from the diagonal, a tile has one run only). All sums have a fixed order.

The kernels are written in Pallas and compiled by Triton, a backend of Pallas that jax 0.11 deprecates.

cuDNN's attention (`jax.nn.dot_product_attention` with implementation="cudnn", read in jax 0.10.2) cannot replace them.
It takes only 16-bit dtypes, and adds every mask that is neither causal nor a length to the bias, which for packed rows
then has the shape [B, H, Q, S].

Shapes: B batch, S keys, Q queries, H heads, K head_dim, C block, R runs of distances.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5xpg.base.errors import UserError
from t5xpg.models import activation_sharding
from t5xpg.models.attention.biases import MASKED, FusedBias

BLOCK = 128  # at most so many bytes along each side of a tile: 64 queries or keys of 16 bits, 32 of float32
ROWS = 16  # at most so many rows of the batch whose tiles are added before they are summed by runs of distances
_LEAST = 16  # the least size of every axis in Triton's products
_FAR = 2**30  # further than any distance
_LOG2_E = math.log2(math.e)


def attend_fused(queries: jax.Array, keys: jax.Array, values: jax.Array, bias: FusedBias) -> jax.Array:
    """queries [B, Q, H, K], keys and values [B, S, H, K] -> the values mixed by attention [B, Q, H, K].

    Queries that see no key get zeros. Without a GPU, kernels are interpreted. Raises UserError on several devices.
    """
    if activation_sharding.on_several_devices():
        raise UserError(
            "T5Config.attention_kernel is 'fused', which is for one device, and the mesh has several. "
            "Leave it out with GIN=\"--gin.ATTENTION_KERNEL='dot_product'\"; ATTENTION_CHUNK_SIZE saves memory there."
        )
    Q, K = queries.shape[1], queries.shape[3]
    block = min(BLOCK // queries.dtype.itemsize, _power_of_two(max(Q, keys.shape[1])))

    def padded(x: jax.Array, value: int = 0) -> jax.Array:
        widths = [(0, 0), (0, -x.shape[1] % block), (0, 0), (0, _power_of_two(K) - K)]
        return jnp.pad(x, widths[: x.ndim], constant_values=value)

    prefix = None if bias.prefix is None else padded(bias.prefix)
    of_queries = _Queries(padded(queries), padded(bias.query_ids), prefix)
    of_keys = _Keys(padded(keys), padded(values), padded(bias.key_ids, -1), prefix)
    return _attend(of_queries, of_keys, bias.by_run, _Kind(block, bias.is_causal, bias.run_begins))[:, :Q, :, :K]


def _power_of_two(size: int) -> int:
    return max(_LEAST, pl.next_power_of_2(size))


class _Kind(NamedTuple):
    """What kernels are compiled for. run_begins: as in FusedBias."""

    block: int
    is_causal: bool
    run_begins: tuple[int, ...]

    @property
    def shifts(self) -> tuple[int, int]:
        """How far a block of keys is ahead of a block of queries: the largest such shift with all distances in the
        first run, and the smallest with all distances in the last run."""
        return self.run_begins[0] - self.block, self.run_begins[-1] + self.block - 1


class _Queries(NamedTuple):
    """Arrays in whole blocks; or a kernel's references to them.

    rows: [B, Q, H, K]; ids, prefix: [B, Q]. For the backward pass: the result's gradient [B, Q, H, K], the logarithms
    of the sums of weights, and the products of gradient and result, [B, H, Q] float32.
    """

    rows: Any
    ids: Any
    prefix: Any
    gradient: Any = None
    log_total: Any = None
    inner: Any = None


class _Keys(NamedTuple):
    """As `_Queries`. rows, values: [B, S, H, K]; ids, prefix: [B, S]."""

    rows: Any
    values: Any
    ids: Any
    prefix: Any


class _Table(NamedTuple):
    """near: log2(e) times what distances add, for tiles of all shifts from the first to the second of `_Kind.shifts`,
    [H, distances] float32. begins: where runs begin, int32, filled up to a power of 2 with values out of reach."""

    near: Any
    begins: Any

    @classmethod
    def of(cls, by_run: jax.Array | None, kind: _Kind) -> _Table | None:
        if by_run is None:
            return None
        first, last = kind.shifts
        distances = np.arange(first - (kind.block - 1), last + kind.block)
        near = _LOG2_E * by_run[:, np.searchsorted(kind.run_begins, distances, side="right")]
        runs = by_run.shape[1]
        begins = np.full(pl.next_power_of_2(runs + 1), _FAR, np.int32)
        begins[:runs] = -_FAR, *kind.run_begins
        return cls(near, jnp.asarray(begins))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend(queries: _Queries, keys: _Keys, by_run: jax.Array | None, kind: _Kind) -> jax.Array:
    """by_run: what runs of distances add, [H, R] -> [B, Q, H, K]."""
    return _forward(queries, keys, by_run, kind)[0]


_Kept = tuple[_Queries, _Keys, jax.Array | None, jax.Array]


def _forward(queries: _Queries, keys: _Keys, by_run: jax.Array | None, kind: _Kind) -> tuple[jax.Array, _Kept]:
    B, Q, H, _ = queries.rows.shape
    outputs = _like(queries.rows, keys.values.dtype), jax.ShapeDtypeStruct((B, H, Q), jnp.float32)
    mixed, log_total = _call(_mix, kind, queries, keys, _Table.of(by_run, kind), outputs)
    return mixed, (queries._replace(log_total=log_total), keys, by_run, mixed)


def _backward(kind: _Kind, kept: _Kept, gradient: jax.Array) -> tuple[_Queries, _Keys, jax.Array | None]:
    queries, keys, by_run, mixed = kept
    inner = jnp.einsum("bqhk,bqhk->bhq", gradient, mixed, preferred_element_type=jnp.float32)
    queries, table = queries._replace(gradient=gradient, inner=inner), _Table.of(by_run, kind)
    (of_queries,) = _call(_query_gradients, kind, queries, keys, table, (_like(queries.rows),))
    outputs = _like(keys.rows), _like(keys.values)
    of_keys, of_values = _call(_key_gradients, kind, keys, queries, table, outputs)
    of_runs = None
    if by_run is not None and table is not None:
        B, Q, H, _ = queries.rows.shape
        rows = math.gcd(B, ROWS)
        sums = jax.ShapeDtypeStruct((B // rows, H, Q // kind.block * table.begins.size), jnp.float32)
        (of_runs,) = _call(_run_gradients, kind, queries, keys, table, (sums,), rows)
        of_runs = of_runs.reshape(B // rows, H, -1, table.begins.size).sum(axis=(0, 2))[:, : by_run.shape[1]]
    # integers have no gradients
    return _Queries(of_queries, None, None), _Keys(of_keys, of_values, None, None), of_runs


_attend.defvjp(_forward, _backward)


def _like(x: jax.Array, dtype: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, dtype or x.dtype)


def _call(
    kernel: Callable[..., None], kind: _Kind, own: Any, others: Any, table: Any, outputs: Any, rows: int | None = None
) -> Any:
    """Run kernel(kind, own, others, table, *outputs), on references, for each block of `own`, each head and each row.

    own and others: _Queries and _Keys, or the reverse; a program gets one block of `own` and of the outputs, and all of
    `others`. outputs: shapes and dtypes. rows: a program gets so many rows of the batch, in a first axis; None: one.
    """
    B, length, H, K = own.rows.shape
    blocks = length // kind.block

    def spec(x: Any, parts: int, rows: int | None) -> pl.BlockSpec:
        def at(i: Any) -> Any:
            return 0 if parts == 1 else i

        if x.ndim == 4:  # [B, length, H, K]
            return pl.BlockSpec((rows, x.shape[1] // parts, None, x.shape[3]), lambda i, h, b: (b, at(i), h, 0))
        if x.ndim == 3:  # [B, H, length]
            return pl.BlockSpec((rows, None, x.shape[2] // parts), lambda i, h, b: (b, h, at(i)))
        return pl.BlockSpec((rows, x.shape[1] // parts), lambda i, h, b: (b, at(i)))

    of_table = None
    if table is not None:
        of_head = pl.BlockSpec((None, table.near.shape[1]), lambda i, h, b: (h, 0))
        of_table = _Table(of_head, pl.BlockSpec(table.begins.shape, lambda i, h, b: (0,)))
    own_specs, other_specs, out_specs = (
        jax.tree.map(functools.partial(spec, parts=parts, rows=of_each), side)
        for side, parts, of_each in ((own, blocks, rows), (others, 1, rows), (tuple(outputs), blocks, None))
    )
    return pl.pallas_call(
        functools.partial(kernel, kind),
        out_shape=tuple(outputs),
        grid=(blocks, H, B // (rows or 1)),
        in_specs=(own_specs, other_specs, of_table),
        out_specs=out_specs,
        compiler_params=triton.CompilerParams(num_warps=4 if K <= 64 else 8, num_stages=3),
        interpret=jax.default_backend() != "gpu",
        name=f"t5_attention{kernel.__name__}",
    )(own, others, table)


def _mix(kind: _Kind, own: _Queries, keys: _Keys, table: _Table | None, mixed_ref: Any, log_total_ref: Any) -> None:
    """The values mixed, and the logarithms of the sums of weights."""
    number, queries = pl.program_id(0), _read(own)

    def step(at: jax.Array, state: Any) -> Any:
        mixed, largest, total = state
        block = _block(keys, at, kind)
        logits = _logits(kind, queries, block, table, at - number)
        highest = jnp.maximum(largest, jnp.max(logits, axis=1))
        weights = _exp2(logits - highest[:, None])
        shrunk = _exp2(largest - highest)
        mixed = mixed * shrunk[:, None] + _product(weights.astype(block.values.dtype), block.values)
        return mixed, highest, total * shrunk + jnp.sum(weights, axis=1)

    start = (
        jnp.zeros(mixed_ref.shape, jnp.float32),
        jnp.full(log_total_ref.shape, MASKED, jnp.float32),
        jnp.zeros(log_total_ref.shape, jnp.float32),
    )
    mixed, largest, total = lax.fori_loop(0, _end(kind, number, keys), step, start)
    is_blind = largest == MASKED  # the query sees nothing
    mixed_ref[...] = jnp.where(is_blind[:, None], 0.0, mixed / total[:, None]).astype(mixed_ref.dtype)
    log_total_ref[...] = jnp.where(is_blind, 0.0, largest + _LOG2_E * jnp.log(total))


def _query_gradients(kind: _Kind, own: _Queries, keys: _Keys, table: _Table | None, of_queries_ref: Any) -> None:
    """The gradients of queries."""
    number, queries = pl.program_id(0), _read(own)

    def step(at: jax.Array, of_queries: jax.Array) -> jax.Array:
        block = _block(keys, at, kind)
        _, of_logits = _gradients(kind, queries, block, table, at - number)
        return of_queries + _product(of_logits.astype(block.rows.dtype), block.rows)

    zeros = jnp.zeros(of_queries_ref.shape, jnp.float32)
    of_queries = lax.fori_loop(0, _end(kind, number, keys), step, zeros)
    of_queries_ref[...] = of_queries.astype(of_queries_ref.dtype)


def _key_gradients(
    kind: _Kind, own: _Keys, queries: _Queries, table: _Table | None, of_keys_ref: Any, of_values_ref: Any
) -> None:
    """The gradients of keys and values. Tiles are [keys, queries] here, so that no product needs one transposed."""
    number, keys = pl.program_id(0), _read(own)

    def step(at: jax.Array, state: Any) -> Any:
        of_keys, of_values = state
        block = _block(queries, at, kind)
        weights, of_logits = _gradients(kind, block, keys, table, number - at, turned=True)
        of_values = of_values + _product(weights.astype(block.gradient.dtype), block.gradient)
        return of_keys + _product(of_logits.astype(block.rows.dtype), block.rows), of_values

    zeros = jnp.zeros(of_keys_ref.shape, jnp.float32)
    first = number if _is_below_diagonal(kind, own) else 0
    of_keys, of_values = lax.fori_loop(first, queries.rows.shape[0] // kind.block, step, (zeros, zeros))
    of_keys_ref[...] = of_keys.astype(of_keys_ref.dtype)
    of_values_ref[...] = of_values.astype(of_values_ref.dtype)


def _run_gradients(kind: _Kind, queries: _Queries, keys: _Keys, table: _Table, of_runs_ref: Any) -> None:
    """The gradients of what runs of distances add. Only here do references have a first axis, of rows."""
    number, rows, begins = pl.program_id(0), queries.ids.shape[0], table.begins[...]

    def run_of(distance: jax.Array) -> jax.Array:
        return jnp.sum((begins <= distance).astype(jnp.int32)) - 1

    def step(at: jax.Array, sums: jax.Array) -> jax.Array:
        ahead = at - number

        def add_row(row: jax.Array, total: jax.Array) -> jax.Array:
            own = jax.tree.map(lambda ref: ref[row], queries)
            block = jax.tree.map(lambda ref: ref[row, pl.ds(at * kind.block, kind.block)], keys)
            return total + _gradients(kind, own, block, table, ahead)[1]

        def add_run(run: jax.Array, sums: jax.Array) -> jax.Array:
            is_in = (distances >= table.begins[run]) & (distances < table.begins[run + 1])
            return sums + jnp.where(jnp.arange(sums.size) == run, jnp.sum(jnp.where(is_in, total, 0.0)), 0.0)

        total = lax.fori_loop(0, rows, add_row, jnp.zeros((kind.block, kind.block), jnp.float32))
        middle, side = ahead * kind.block, kind.block - 1
        distances = middle + _distances(kind)
        return lax.fori_loop(run_of(middle - side), run_of(middle + side) + 1, add_run, sums)

    sums = jnp.zeros(of_runs_ref.shape, jnp.float32)
    of_runs_ref[...] = lax.fori_loop(0, _end(kind, number, keys), step, sums)


def _is_below_diagonal(kind: _Kind, keys: _Keys) -> bool:
    """Whether no query sees keys of blocks that come after its own."""
    return kind.is_causal and keys.prefix is None


def _end(kind: _Kind, number: jax.Array, keys: _Keys) -> jax.Array | int:
    """The first block of keys that no query of block `number` sees."""
    return number + 1 if _is_below_diagonal(kind, keys) else keys.ids.shape[-1] // kind.block


def _read(side: Any) -> Any:
    """What references to queries or keys refer to."""
    return jax.tree.map(lambda ref: ref[...], side)


def _block(side: Any, at: jax.Array, kind: _Kind) -> Any:
    """Block `at` of queries or keys."""
    return jax.tree.map(lambda ref: ref[pl.ds(at * kind.block, kind.block)], side)


def _pair(of_queries: jax.Array, of_keys: jax.Array, *, turned: bool) -> tuple[jax.Array, jax.Array]:
    """[C] each, along the axes of a tile: [queries, keys], or [keys, queries] if turned."""
    return (of_queries[None, :], of_keys[:, None]) if turned else (of_queries[:, None], of_keys[None, :])


def _distances(kind: _Kind, *, turned: bool = False) -> jax.Array:
    """Positions of keys minus positions of queries, for blocks with the same start: int32 [C, C]."""
    positions = jnp.arange(kind.block, dtype=jnp.int32)
    of_queries, of_keys = _pair(positions, positions, turned=turned)
    return of_keys - of_queries


def _logits(
    kind: _Kind, queries: _Queries, keys: _Keys, table: _Table | None, ahead: jax.Array, *, turned: bool = False
) -> jax.Array:
    """log2(e) times the logits, MASKED where a query does not see a key: [C, C] float32."""
    products = _product(keys.rows, queries.rows, 1) if turned else _product(queries.rows, keys.rows, 1)
    logits, distances = _LOG2_E * products, _distances(kind, turned=turned)
    if table is not None:
        first, last = kind.shifts
        logits = logits + table.near[distances + (jnp.clip(ahead * kind.block, first, last) - first + kind.block - 1)]
    query_ids, key_ids = _pair(queries.ids, keys.ids, turned=turned)
    visible = query_ids == key_ids
    if kind.is_causal:
        before = distances <= -ahead * kind.block
        if queries.prefix is not None:
            of_queries, of_keys = _pair(queries.prefix, keys.prefix, turned=turned)
            before = before | ((of_queries > 0) & (of_keys > 0))
        visible = visible & before
    return jnp.where(visible, logits, MASKED)


def _gradients(
    kind: _Kind, queries: _Queries, keys: _Keys, table: _Table | None, ahead: jax.Array, *, turned: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The weights, and the gradients of the logits: [C, C] float32."""

    def of_queries(x: jax.Array) -> jax.Array:
        return _pair(x, x, turned=turned)[0]

    weights = _exp2(_logits(kind, queries, keys, table, ahead, turned=turned) - of_queries(queries.log_total))
    sides = (keys.values, queries.gradient) if turned else (queries.gradient, keys.values)
    return weights, weights * (_product(*sides, 1) - of_queries(queries.inner))


def _product(a: jax.Array, b: jax.Array, b_axis: int = 0) -> jax.Array:
    """The product of a and b, summed over the last axis of a and `b_axis` of b, float32."""
    return lax.dot_general(a, b, (((1,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)


def _exp2(x: jax.Array) -> jax.Array:
    """2 ** x, float32; on a GPU by one instruction, which gives 0 for results below 2 ** -126."""
    if jax.default_backend() != "gpu":
        return jnp.exp2(x)
    (result,) = triton.elementwise_inline_asm(
        "ex2.approx.ftz.f32 $0, $1;", args=[x], constraints="=f,f", pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, x.dtype)],
    )  # fmt: skip
    return result
