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
    return _attend(of_queries, of_keys, bias.by_run, _Static(block, bias.is_causal, bias.run_begins))[:, :Q, :, :K]


def _power_of_two(size: int) -> int:
    return max(_LEAST, pl.next_power_of_2(size))


class _Static(NamedTuple):
    """The constants that kernels are compiled for. run_begins: as in FusedBias."""

    block: int
    is_causal: bool
    run_begins: tuple[int, ...]

    @property
    def shifts(self) -> tuple[int, int]:
        """Two shifts of a block of keys ahead of a block of queries: the largest with all distances in the first run,
        and the smallest with all distances in the last run."""
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
    """near: log2(e) times the biases of distances, for tiles of all shifts from the first to the second of
    `_Static.shifts`, [H, distances] float32. begins: the first distance of each run, int32, filled up to a power
    of 2 with values out of reach."""

    near: Any
    begins: Any

    @classmethod
    def from_runs(cls, by_run: jax.Array | None, static: _Static) -> _Table | None:
        if by_run is None:
            return None
        first, last = static.shifts
        distances = np.arange(first - (static.block - 1), last + static.block)
        near = _LOG2_E * by_run[:, np.searchsorted(static.run_begins, distances, side="right")]
        runs = by_run.shape[1]
        begins = np.full(pl.next_power_of_2(runs + 1), _FAR, np.int32)
        begins[:runs] = -_FAR, *static.run_begins
        return cls(near, jnp.asarray(begins))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend(queries: _Queries, keys: _Keys, by_run: jax.Array | None, static: _Static) -> jax.Array:
    """by_run: the bias of each run of distances, [H, R] -> [B, Q, H, K]."""
    return _forward(queries, keys, by_run, static)[0]


_Residuals = tuple[_Queries, _Keys, jax.Array | None, jax.Array]


def _forward(queries: _Queries, keys: _Keys, by_run: jax.Array | None, static: _Static) -> tuple[jax.Array, _Residuals]:
    B, Q, H, _ = queries.rows.shape
    outputs = _like(queries.rows, keys.values.dtype), jax.ShapeDtypeStruct((B, H, Q), jnp.float32)
    mixed, log_total = _call(_mix, static, queries, keys, _Table.from_runs(by_run, static), outputs)
    return mixed, (queries._replace(log_total=log_total), keys, by_run, mixed)


def _backward(static: _Static, residuals: _Residuals, gradient: jax.Array) -> tuple[_Queries, _Keys, jax.Array | None]:
    queries, keys, by_run, mixed = residuals
    inner = jnp.einsum("bqhk,bqhk->bhq", gradient, mixed, preferred_element_type=jnp.float32)
    queries, table = queries._replace(gradient=gradient, inner=inner), _Table.from_runs(by_run, static)
    (query_gradients,) = _call(_query_gradients, static, queries, keys, table, (_like(queries.rows),))
    outputs = _like(keys.rows), _like(keys.values)
    key_gradients, value_gradients = _call(_key_gradients, static, keys, queries, table, outputs)
    run_gradients = None
    if by_run is not None and table is not None:
        B, Q, H, _ = queries.rows.shape
        rows = math.gcd(B, ROWS)
        sums = jax.ShapeDtypeStruct((B // rows, H, Q // static.block * table.begins.size), jnp.float32)
        (run_gradients,) = _call(_run_gradients, static, queries, keys, table, (sums,), rows)
        run_gradients = run_gradients.reshape(B // rows, H, -1, table.begins.size).sum(axis=(0, 2))
        run_gradients = run_gradients[:, : by_run.shape[1]]
    # integers have no gradients
    return _Queries(query_gradients, None, None), _Keys(key_gradients, value_gradients, None, None), run_gradients


_attend.defvjp(_forward, _backward)


def _like(x: jax.Array, dtype: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, dtype or x.dtype)


def _call(
    kernel: Callable[..., None],
    static: _Static,
    blocked: Any,
    whole: Any,
    table: Any,
    outputs: Any,
    rows: int | None = None,
) -> Any:
    """Run kernel(static, blocked, whole, table, *outputs), on references, for each block, each head and each row.

    blocked and whole: _Queries and _Keys, or the reverse; a program gets one block of `blocked` and of the outputs, and
    all of `whole`. outputs: shapes and dtypes. rows: the rows of the batch that a program gets, in a first axis; None:
    one row without that axis.
    """
    B, length, H, K = blocked.rows.shape
    blocks = length // static.block

    def spec(x: Any, parts: int, rows: int | None) -> pl.BlockSpec:
        def part_index(i: Any) -> Any:
            return 0 if parts == 1 else i

        if x.ndim == 4:  # [B, length, H, K]
            return pl.BlockSpec((rows, x.shape[1] // parts, None, x.shape[3]), lambda i, h, b: (b, part_index(i), h, 0))
        if x.ndim == 3:  # [B, H, length]
            return pl.BlockSpec((rows, None, x.shape[2] // parts), lambda i, h, b: (b, h, part_index(i)))
        return pl.BlockSpec((rows, x.shape[1] // parts), lambda i, h, b: (b, part_index(i)))

    table_specs = None
    if table is not None:
        near_spec = pl.BlockSpec((None, table.near.shape[1]), lambda i, h, b: (h, 0))
        table_specs = _Table(near_spec, pl.BlockSpec(table.begins.shape, lambda i, h, b: (0,)))
    blocked_specs, whole_specs, out_specs = (
        jax.tree.map(functools.partial(spec, parts=parts, rows=rows_of_side), side)
        for side, parts, rows_of_side in ((blocked, blocks, rows), (whole, 1, rows), (tuple(outputs), blocks, None))
    )
    return pl.pallas_call(
        functools.partial(kernel, static),
        out_shape=tuple(outputs),
        grid=(blocks, H, B // (rows or 1)),
        in_specs=(blocked_specs, whole_specs, table_specs),
        out_specs=out_specs,
        compiler_params=triton.CompilerParams(num_warps=4 if K <= 64 else 8, num_stages=3),
        interpret=jax.default_backend() != "gpu",
        name=f"t5_attention{kernel.__name__}",
    )(blocked, whole, table)


def _mix(
    static: _Static, blocked: _Queries, keys: _Keys, table: _Table | None, mixed_ref: Any, log_total_ref: Any
) -> None:
    """The values mixed, and the logarithms of the sums of weights."""
    number, queries = pl.program_id(0), _read(blocked)

    def step(index: jax.Array, state: Any) -> Any:
        mixed, largest, total = state
        block = _block(keys, index, static)
        logits = _logits(static, queries, block, table, index - number)
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
    mixed, largest, total = lax.fori_loop(0, _end(static, number, keys), step, start)
    is_blind = largest == MASKED  # the query sees nothing
    mixed_ref[...] = jnp.where(is_blind[:, None], 0.0, mixed / total[:, None]).astype(mixed_ref.dtype)
    log_total_ref[...] = jnp.where(is_blind, 0.0, largest + _LOG2_E * jnp.log(total))


def _query_gradients(static: _Static, blocked: _Queries, keys: _Keys, table: _Table | None, gradient_ref: Any) -> None:
    """The gradients of queries."""
    number, queries = pl.program_id(0), _read(blocked)

    def step(index: jax.Array, query_gradients: jax.Array) -> jax.Array:
        block = _block(keys, index, static)
        _, logit_gradients = _gradients(static, queries, block, table, index - number)
        return query_gradients + _product(logit_gradients.astype(block.rows.dtype), block.rows)

    zeros = jnp.zeros(gradient_ref.shape, jnp.float32)
    query_gradients = lax.fori_loop(0, _end(static, number, keys), step, zeros)
    gradient_ref[...] = query_gradients.astype(gradient_ref.dtype)


def _key_gradients(
    static: _Static, blocked: _Keys, queries: _Queries, table: _Table | None, keys_ref: Any, values_ref: Any
) -> None:
    """The gradients of keys and values. Tiles are [keys, queries] here, so that no product needs one transposed."""
    number, keys = pl.program_id(0), _read(blocked)

    def step(index: jax.Array, state: Any) -> Any:
        key_gradients, value_gradients = state
        block = _block(queries, index, static)
        weights, logit_gradients = _gradients(static, block, keys, table, number - index, turned=True)
        value_gradients = value_gradients + _product(weights.astype(block.gradient.dtype), block.gradient)
        return key_gradients + _product(logit_gradients.astype(block.rows.dtype), block.rows), value_gradients

    zeros = jnp.zeros(keys_ref.shape, jnp.float32)
    first = number if _is_below_diagonal(static, blocked) else 0
    key_gradients, value_gradients = lax.fori_loop(first, queries.rows.shape[0] // static.block, step, (zeros, zeros))
    keys_ref[...] = key_gradients.astype(keys_ref.dtype)
    values_ref[...] = value_gradients.astype(values_ref.dtype)


def _run_gradients(static: _Static, queries: _Queries, keys: _Keys, table: _Table, gradient_ref: Any) -> None:
    """The gradients of the biases of runs. Only here do references have a first axis, of rows."""
    number, rows, begins = pl.program_id(0), queries.ids.shape[0], table.begins[...]

    def run_of(distance: jax.Array) -> jax.Array:
        return jnp.sum((begins <= distance).astype(jnp.int32)) - 1

    def step(index: jax.Array, sums: jax.Array) -> jax.Array:
        ahead = index - number

        def add_row(row: jax.Array, total: jax.Array) -> jax.Array:
            row_queries = jax.tree.map(lambda ref: ref[row], queries)
            block = jax.tree.map(lambda ref: ref[row, pl.ds(index * static.block, static.block)], keys)
            return total + _gradients(static, row_queries, block, table, ahead)[1]

        def add_run(run: jax.Array, sums: jax.Array) -> jax.Array:
            is_in = (distances >= table.begins[run]) & (distances < table.begins[run + 1])
            return sums + jnp.where(jnp.arange(sums.size) == run, jnp.sum(jnp.where(is_in, total, 0.0)), 0.0)

        total = lax.fori_loop(0, rows, add_row, jnp.zeros((static.block, static.block), jnp.float32))
        middle, side = ahead * static.block, static.block - 1
        distances = middle + _distances(static)
        return lax.fori_loop(run_of(middle - side), run_of(middle + side) + 1, add_run, sums)

    sums = jnp.zeros(gradient_ref.shape, jnp.float32)
    gradient_ref[...] = lax.fori_loop(0, _end(static, number, keys), step, sums)


def _is_below_diagonal(static: _Static, keys: _Keys) -> bool:
    """True if no query sees keys of blocks that come after its own."""
    return static.is_causal and keys.prefix is None


def _end(static: _Static, number: jax.Array, keys: _Keys) -> jax.Array | int:
    """The first block of keys that no query of block `number` sees."""
    return number + 1 if _is_below_diagonal(static, keys) else keys.ids.shape[-1] // static.block


def _read(side: Any) -> Any:
    """The arrays that references to queries or keys refer to."""
    return jax.tree.map(lambda ref: ref[...], side)


def _block(side: Any, index: jax.Array, static: _Static) -> Any:
    """Block `index` of queries or keys."""
    return jax.tree.map(lambda ref: ref[pl.ds(index * static.block, static.block)], side)


def _pair(of_queries: jax.Array, of_keys: jax.Array, *, turned: bool) -> tuple[jax.Array, jax.Array]:
    """[C] each, along the axes of a tile: [queries, keys], or [keys, queries] if turned."""
    return (of_queries[None, :], of_keys[:, None]) if turned else (of_queries[:, None], of_keys[None, :])


def _distances(static: _Static, *, turned: bool = False) -> jax.Array:
    """Positions of keys minus positions of queries, for blocks with the same start: int32 [C, C]."""
    positions = jnp.arange(static.block, dtype=jnp.int32)
    of_queries, of_keys = _pair(positions, positions, turned=turned)
    return of_keys - of_queries


def _logits(
    static: _Static, queries: _Queries, keys: _Keys, table: _Table | None, ahead: jax.Array, *, turned: bool = False
) -> jax.Array:
    """log2(e) times the logits, MASKED where a query does not see a key: [C, C] float32."""
    products = _product(keys.rows, queries.rows, 1) if turned else _product(queries.rows, keys.rows, 1)
    logits, distances = _LOG2_E * products, _distances(static, turned=turned)
    if table is not None:
        first, last = static.shifts
        shift = jnp.clip(ahead * static.block, first, last) - first + static.block - 1
        logits = logits + table.near[distances + shift]
    query_ids, key_ids = _pair(queries.ids, keys.ids, turned=turned)
    visible = query_ids == key_ids
    if static.is_causal:
        before = distances <= -ahead * static.block
        if queries.prefix is not None:
            of_queries, of_keys = _pair(queries.prefix, keys.prefix, turned=turned)
            before = before | ((of_queries > 0) & (of_keys > 0))
        visible = visible & before
    return jnp.where(visible, logits, MASKED)


def _gradients(
    static: _Static, queries: _Queries, keys: _Keys, table: _Table | None, ahead: jax.Array, *, turned: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The weights, and the gradients of the logits: [C, C] float32."""

    def per_query(x: jax.Array) -> jax.Array:
        return _pair(x, x, turned=turned)[0]

    weights = _exp2(_logits(static, queries, keys, table, ahead, turned=turned) - per_query(queries.log_total))
    sides = (keys.values, queries.gradient) if turned else (queries.gradient, keys.values)
    return weights, weights * (_product(*sides, 1) - per_query(queries.inner))


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
