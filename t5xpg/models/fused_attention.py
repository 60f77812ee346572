"""Attention with T5's biases in kernels for GPUs: no array of all pairs of positions, forward or backward.

FlashAttention-2 (Dao 2023, arXiv 2307.08691): a program works off a block of queries, key block by key block, and
corrects the softmax as it goes; the backward pass makes the weights again of the logarithms of their sums. Biases and
masks are made within a tile, of a table of the near distances and of ids of queries and keys. The gradient of the
biases is summed within a tile too, by the runs of distances that share a bias (far from the diagonal a tile has one),
and then over tiles, in a fixed order.

The kernels are written in Pallas and compiled by Triton, a backend of Pallas that jax 0.11 deprecates.

cuDNN's attention (`jax.nn.dot_product_attention` with implementation="cudnn", read in jax 0.10.2) does not serve.
It takes 16-bit dtypes alone, and adds every mask that is neither causal nor a length to the bias, which becomes
[B, H, Q, S] of packed rows.

Shapes: B batch, S keys, Q queries, H heads, K head_dim, C block, R runs of distances.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5xpg.base.errors import UserError
from t5xpg.models import activations
from t5xpg.models.biases import MASKED, FusedBias

BLOCK = 128  # bytes of a tile's side of queries or keys, at most: 64 of 16 bits, 32 of float32
_LEAST = 16  # what Triton's products have along every axis, at least
_FAR = 2**30  # further than any distance


def attend_fused(queries: jax.Array, keys: jax.Array, values: jax.Array, bias: FusedBias) -> jax.Array:
    """queries [B, Q, H, K], keys and values [B, S, H, K] -> the values mixed by attention [B, Q, H, K].

    Queries that see no key get zeros. Without a GPU it is interpreted. Raises UserError on a mesh of several devices.
    """
    if activations.on_several_devices():
        raise UserError(
            "T5Config.attention_kernel is 'fused', which is for one device, and the mesh has several. "
            "Type ATTENTION_KERNEL='dot_product'; ATTENTION_CHUNK_SIZE saves memory there."
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
    """What kernels are compiled for. run_begins: as of FusedBias."""

    block: int
    is_causal: bool
    run_begins: tuple[int, ...]


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
    """near: what distances add, from the last one of the first run to the first one of the last, [H, distances]
    float32. begins: of the runs, and more that no distance reaches, int32; as many as a power of 2."""

    near: Any
    begins: Any

    @classmethod
    def of(cls, by_run: jax.Array | None, kind: _Kind) -> _Table | None:
        if by_run is None:
            return None
        distances = np.arange(kind.run_begins[0] - 1, kind.run_begins[-1] + 1)
        near = by_run[:, np.searchsorted(kind.run_begins, distances, side="right")]
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
    queries = queries._replace(gradient=gradient, inner=inner)
    table, outputs = _Table.of(by_run, kind), [_like(queries.rows)]
    B, Q, H, _ = queries.rows.shape
    blocks = Q // kind.block
    if table is not None:
        outputs.append(jax.ShapeDtypeStruct((B, H, blocks * table.begins.size), jnp.float32))
    of_queries, *of_runs = _call(_query_gradients, kind, queries, keys, table, outputs)
    outputs = [_like(keys.rows), _like(keys.values)]
    of_keys, of_values = _call(_key_gradients, kind, keys, queries, table, outputs)
    of_table = None
    if by_run is not None:
        of_table = of_runs[0].reshape(B, H, blocks, -1).sum(axis=(0, 2))[:, : by_run.shape[1]]
    # integers have no gradients
    return _Queries(of_queries, None, None), _Keys(of_keys, of_values, None, None), of_table


_attend.defvjp(_forward, _backward)


def _like(x: jax.Array, dtype: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, dtype or x.dtype)


def _call(kernel: Callable[..., None], kind: _Kind, own: Any, others: Any, table: _Table | None, outputs: Any) -> Any:
    """kernel(kind, own, others, table, *outputs), with references, for each block of `own` of each head and row.

    own: _Queries and others _Keys, or the other way; a kernel has a block of its own side and of the outputs, and all
    of the other side. outputs: shapes and dtypes.
    """
    B, length, H, K = own.rows.shape
    blocks = length // kind.block

    def spec(x: Any, parts: int) -> pl.BlockSpec:
        def at(i: Any) -> Any:
            return 0 if parts == 1 else i

        if x.ndim == 4:  # [B, length, H, K]
            return pl.BlockSpec((None, x.shape[1] // parts, None, x.shape[3]), lambda i, h, b: (b, at(i), h, 0))
        if x.ndim == 3:  # [B, H, length]
            return pl.BlockSpec((None, None, x.shape[2] // parts), lambda i, h, b: (b, h, at(i)))
        return pl.BlockSpec((None, x.shape[1] // parts), lambda i, h, b: (b, at(i)))

    of_table = None
    if table is not None:
        of_head = pl.BlockSpec((None, table.near.shape[1]), lambda i, h, b: (h, 0))
        of_table = _Table(of_head, pl.BlockSpec(table.begins.shape, lambda i, h, b: (0,)))
    own_specs, other_specs, out_specs = (
        jax.tree.map(functools.partial(spec, parts=parts), side)
        for side, parts in ((own, blocks), (others, 1), (tuple(outputs), blocks))
    )
    return pl.pallas_call(
        functools.partial(kernel, kind),
        out_shape=tuple(outputs),
        grid=(blocks, H, B),
        in_specs=(own_specs, other_specs, of_table),
        out_specs=out_specs,
        compiler_params=triton.CompilerParams(num_warps=4 if K <= 64 else 8, num_stages=2),
        interpret=jax.default_backend() != "gpu",
        name=f"t5_attention{kernel.__name__}",
    )(own, others, table)


def _mix(kind: _Kind, own: _Queries, keys: _Keys, table: _Table | None, mixed_ref: Any, log_total_ref: Any) -> None:
    """The values mixed, and the logarithms of the sums of weights."""
    number, queries = pl.program_id(0), _read(own)

    def step(at: jax.Array, state: Any) -> Any:
        mixed, largest, total = state
        block = _block(keys, at, kind)
        tile = _tile(kind, queries, block, table, at - number)
        highest = jnp.maximum(largest, jnp.max(tile.logits, axis=1))
        weights = tile.weights(highest)
        shrunk = jnp.exp(largest - highest)
        mixed = mixed * shrunk[:, None] + _product(weights.astype(block.values.dtype), block.values, 1, 0)
        return mixed, highest, total * shrunk + jnp.sum(weights, axis=1)

    start = (
        jnp.zeros(mixed_ref.shape, jnp.float32),
        jnp.full(log_total_ref.shape, MASKED, jnp.float32),
        jnp.zeros(log_total_ref.shape, jnp.float32),
    )
    mixed, largest, total = lax.fori_loop(0, _end(kind, number, keys), step, start)
    total = jnp.where(total == 0, 1.0, total)  # of a query that sees nothing
    mixed_ref[...] = (mixed / total[:, None]).astype(mixed_ref.dtype)
    log_total_ref[...] = largest + jnp.log(total)


def _query_gradients(
    kind: _Kind, own: _Queries, keys: _Keys, table: _Table | None, of_queries_ref: Any, of_runs_ref: Any = None
) -> None:
    """The gradients of queries, and of the biases, summed over the block by runs of distances."""
    number, queries = pl.program_id(0), _read(own)

    def step(at: jax.Array, state: Any) -> Any:
        of_queries, of_runs = state
        block = _block(keys, at, kind)
        tile = _tile(kind, queries, block, table, at - number)
        of_logits = tile.gradient(tile.weights(queries.log_total), queries, block.values)
        of_queries = of_queries + _product(of_logits.astype(block.rows.dtype), block.rows, 1, 0)
        if table is not None:
            of_runs = _add_by_run(kind, of_runs, table.begins, tile.distances, of_logits, at - number)
        return of_queries, of_runs

    zeros = jnp.zeros(of_queries_ref.shape, jnp.float32)
    none = None if table is None else jnp.zeros(of_runs_ref.shape, jnp.float32)
    of_queries, of_runs = lax.fori_loop(0, _end(kind, number, keys), step, (zeros, none))
    of_queries_ref[...] = of_queries.astype(of_queries_ref.dtype)
    if table is not None:
        of_runs_ref[...] = of_runs


def _key_gradients(
    kind: _Kind, own: _Keys, queries: _Queries, table: _Table | None, of_keys_ref: Any, of_values_ref: Any
) -> None:
    """The gradients of keys and values."""
    number, keys = pl.program_id(0), _read(own)

    def step(at: jax.Array, state: Any) -> Any:
        of_keys, of_values = state
        block = _block(queries, at, kind)
        tile = _tile(kind, block, keys, table, number - at)
        weights = tile.weights(block.log_total)
        of_values = of_values + _product(weights.astype(block.gradient.dtype), block.gradient, 0, 0)
        of_logits = tile.gradient(weights, block, keys.values)
        return of_keys + _product(of_logits.astype(block.rows.dtype), block.rows, 0, 0), of_values

    zeros = jnp.zeros(of_keys_ref.shape, jnp.float32)
    first = number if _is_below_diagonal(kind, own) else 0
    of_keys, of_values = lax.fori_loop(first, queries.rows.shape[0] // kind.block, step, (zeros, zeros))
    of_keys_ref[...] = of_keys.astype(of_keys_ref.dtype)
    of_values_ref[...] = of_values.astype(of_values_ref.dtype)


def _is_below_diagonal(kind: _Kind, keys: _Keys) -> bool:
    """Whether no query sees keys of blocks that come after its own."""
    return kind.is_causal and keys.prefix is None


def _end(kind: _Kind, number: jax.Array, keys: _Keys) -> jax.Array | int:
    """The first block of keys that no query of block `number` sees."""
    return number + 1 if _is_below_diagonal(kind, keys) else keys.rows.shape[0] // kind.block


def _read(side: Any) -> Any:
    """What references to queries or keys refer to."""
    return jax.tree.map(lambda ref: ref[...], side)


def _block(side: Any, at: jax.Array, kind: _Kind) -> Any:
    """Block `at` of it."""
    return jax.tree.map(lambda ref: ref[pl.ds(at * kind.block, kind.block)], side)


class _Tile(NamedTuple):
    """Of a block of queries and one of keys: logits float32, MASKED where a query does not see a key; whether it does;
    distances int32; all [C, C]."""

    logits: jax.Array
    visible: jax.Array
    distances: jax.Array

    def weights(self, log_total: jax.Array) -> jax.Array:
        """exp(logits - log_total), [C, C]; 0 where masked, in rows too where all is. log_total: [C] float32."""
        return jnp.where(self.visible, jnp.exp(self.logits - log_total[:, None]), 0.0)

    def gradient(self, weights: jax.Array, queries: _Queries, values: jax.Array) -> jax.Array:
        """Of the logits: [C, C] float32."""
        return weights * (_product(queries.gradient, values, 1, 1) - queries.inner[:, None])


def _tile(kind: _Kind, queries: _Queries, keys: _Keys, table: _Table | None, ahead: jax.Array) -> _Tile:
    """ahead: how many blocks the keys are ahead of the queries. table: references."""
    positions = jnp.arange(kind.block, dtype=jnp.int32)
    distances = ahead * kind.block + positions[None, :] - positions[:, None]
    logits = _product(queries.rows, keys.rows, 1, 1)
    if table is not None:
        nearest, furthest = kind.run_begins[0] - 1, kind.run_begins[-1]
        logits = logits + table.near[jnp.clip(distances, nearest, furthest) - nearest]
    visible = queries.ids[:, None] == keys.ids[None, :]
    if kind.is_causal:
        before = distances <= 0
        if queries.prefix is not None:
            before = before | ((queries.prefix[:, None] > 0) & (keys.prefix[None, :] > 0))
        visible = visible & before
    return _Tile(jnp.where(visible, logits, MASKED), visible, distances)


def _add_by_run(
    kind: _Kind, sums: jax.Array, begins: Any, distances: jax.Array, of_logits: jax.Array, ahead: jax.Array
) -> jax.Array:
    """sums [R or more] and, for each run that the tile has, the sum of of_logits [C, C] over its distances."""
    all_begins = begins[...]

    def run_of(distance: jax.Array) -> jax.Array:
        return jnp.sum((all_begins <= distance).astype(jnp.int32)) - 1

    def add(run: jax.Array, sums: jax.Array) -> jax.Array:
        is_in = (distances >= begins[run]) & (distances < begins[run + 1])
        total = jnp.sum(jnp.where(is_in, of_logits, 0.0))
        return sums + jnp.where(jnp.arange(sums.size) == run, total, 0.0)

    least = ahead * kind.block - (kind.block - 1)
    return lax.fori_loop(run_of(least), run_of(least + 2 * (kind.block - 1)) + 1, add, sums)


def _product(a: jax.Array, b: jax.Array, a_axis: int, b_axis: int) -> jax.Array:
    """The sums over one axis of each, float32."""
    return lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)
