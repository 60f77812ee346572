"""Operations of programs whose products and traffic can be counted by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from t5xpg.check.plan.operations import operations
from t5xpg.check.plan.program import read_program


def costs(
    function: Callable[..., Any], *arrays: tuple[tuple[int, ...], Any], dtype: str = "float32"
) -> tuple[int, int]:
    """(FLOPs, bytes) of a compiled function of arrays of these shapes and dtypes."""
    shapes = [jax.ShapeDtypeStruct(shape, kind) for shape, kind in arrays]
    options = {"xla_allow_excess_precision": False}
    text = jax.jit(function).lower(*shapes).compile(compiler_options=options).as_text()
    found = operations(read_program(text), dtype)
    return tuple(sum(getattr(one, kind) * times for one, times in found.items()) for kind in ("flops", "bytes"))


F32, BF16 = jnp.float32, jnp.bfloat16
M, K, N = 256, 128, 512


def test_a_product() -> None:
    """A CPU may widen both sides of bfloat16 and narrow the product, which are no operations of an accelerator."""
    for kind, dtype, size in ((F32, "float32", 4), (BF16, "bfloat16", 2)):
        expected = (2 * M * K * N, size * (M * K + K * N + M * N))
        assert costs(jnp.matmul, ((M, K), kind), ((K, N), kind), dtype=dtype) == expected


def test_a_loop_counts_as_often_as_it_runs() -> None:
    def powers(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, weight: (carry @ weight, None), x, weights)[0]

    flops, size = costs(powers, ((M, K), F32), ((7, K, K), F32))
    assert flops == 7 * 2 * M * K * K
    # each pass reads and writes x, and reads its own part of the weights: as part of the product, or in a copy
    once = 4 * (2 * M * K + K * K)
    assert 7 * once <= size < 7 * (once + 4 * 3 * K * K)


def test_what_is_fused_passes_memory_once() -> None:
    flops, size = costs(lambda x, y: jnp.tanh(x * y + 1.0) / 3.0, ((M, N), F32), ((M, N), F32))
    assert (flops, size) == (0, 4 * 3 * M * N)


def test_casting_weights_reads_and_writes_them() -> None:
    """Parameters are float32 and computed with in bfloat16: a third copy, of half the size, comes and goes."""
    _, size = costs(lambda x, w: x @ w.astype(BF16), ((M, K), BF16), ((K, N), F32), dtype="bfloat16")
    assert size == 2 * (M * K + M * N) + 2 * K * N + 2 * K * N  # the product, and the narrow copy that is written
