"""Products of two arrays and their gradients, in the forms that XLA's kernels for CPUs are fast in.

A gradient a^T b is computed with the narrower factor on the left, and transposed where that is b. With the wider one
there the kernels take twice the time; a plain transposition would be folded into that form again.

bfloat16: XLA multiplies such numbers with the processor's own instructions where the result is float32, and as float32
numbers where it is bfloat16. The sums are float32 in both. `wide` chooses the former. It is so for factors whose summed
axis is the last one of the left: of the products of a step all but the gradients of weights, keys and values.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax
import jax.numpy as jnp
from jax import lax

_wide: ContextVar[bool] = ContextVar("wide_products", default=False)


@contextmanager
def wide(are: bool) -> Iterator[None]:
    """What is traced in the block has float32 results; it is compiled with `cpu_flags.SINGLE_PRODUCTS`."""
    token = _wide.set(are)
    try:
        yield
    finally:
        _wide.reset(token)


def _result_dtype(factor: jax.Array) -> jnp.dtype:
    return jnp.dtype(jnp.float32) if _wide.get() and factor.dtype == jnp.bfloat16 else factor.dtype


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """As `jnp.dot`, in the dtype of `a`; where products are wide without a gradient."""
    return jnp.dot(a, b, preferred_element_type=_result_dtype(a)).astype(a.dtype)


def transposed_dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """a [..., N, D] and b [..., N, F] -> a^T b [..., D, F], in their dtype."""
    if a.shape[-1] <= b.shape[-1]:
        return jnp.einsum("...nd,...nf->...df", a, b)
    return jnp.swapaxes(lax.optimization_barrier(jnp.einsum("...nf,...nd->...fd", b, a)), -2, -1)


@jax.custom_vjp
def pairs(a: jax.Array, b: jax.Array) -> jax.Array:
    """a [..., M, K] and b [..., N, K] -> a b^T [..., M, N], in their dtype or float32 where products are wide."""
    return jnp.einsum("...mk,...nk->...mn", a, b, preferred_element_type=_result_dtype(a))


def _pairs_forward(a: jax.Array, b: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return pairs(a, b), (a, b)


def _pairs_backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    (a, b), rounded = kept, gradient.astype(kept[0].dtype)
    return mix(rounded, b).astype(a.dtype), transposed_dot(rounded, a)


pairs.defvjp(_pairs_forward, _pairs_backward)


@jax.custom_vjp
def mix(a: jax.Array, b: jax.Array) -> jax.Array:
    """a [..., M, N] and b [..., N, K] -> a b [..., M, K], in their dtype or float32 where products are wide."""
    return jnp.einsum("...mn,...nk->...mk", a, b, preferred_element_type=_result_dtype(a))


def _mix_forward(a: jax.Array, b: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return mix(a, b), (a, b)


def _mix_backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    (a, b), rounded = kept, gradient.astype(kept[0].dtype)
    return pairs(rounded, b).astype(a.dtype), transposed_dot(a, rounded)


mix.defvjp(_mix_forward, _mix_backward)
