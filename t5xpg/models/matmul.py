"""Matrix products of two arrays; within `float32_results`, those of bfloat16 factors are float32.

On CPUs, XLA multiplies bfloat16 numbers with the processor's own instructions if the result is float32, and as float32
numbers if the result is bfloat16. Sums are float32 in both cases. This holds where the last axis of the left factor is
summed: for all products of a step, except the gradients of weights, keys and values.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax
import jax.numpy as jnp

_float32_results: ContextVar[bool] = ContextVar("float32_results", default=False)


@contextmanager
def float32_results(enabled: bool) -> Iterator[None]:
    """Give products traced in the block float32 results, if `enabled`; compile with `xla_flags.SINGLE_PRODUCTS`."""
    token = _float32_results.set(enabled)
    try:
        yield
    finally:
        _float32_results.reset(token)


def _is_float32_result(factor: jax.Array) -> bool:
    return _float32_results.get() and factor.dtype == jnp.bfloat16


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """As `jnp.dot`, in the dtype of `a`. Within `float32_results`, it is not made to be differentiated."""
    return jnp.dot(a, b, preferred_element_type=jnp.float32).astype(a.dtype) if _is_float32_result(a) else jnp.dot(a, b)


def einsum(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """As `jnp.einsum` of two arrays, in their dtype or, within `float32_results`, float32. Each letter is in two of the
    three terms."""
    return _float32_einsum(subscripts, a, b) if _is_float32_result(a) else jnp.einsum(subscripts, a, b)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _float32_einsum(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


def _forward(subscripts: str, a: jax.Array, b: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _float32_einsum(subscripts, a, b), (a, b)


def _backward(
    subscripts: str, residuals: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    (a, b), (factors, result) = residuals, subscripts.split("->")
    axes_of_a, axes_of_b = factors.split(",")
    rounded = gradient.astype(a.dtype)
    by_a = _float32_einsum(f"{result},{axes_of_b}->{axes_of_a}", rounded, b).astype(a.dtype)
    return by_a, jnp.einsum(f"{axes_of_a},{result}->{axes_of_b}", a, rounded)


_float32_einsum.defvjp(_forward, _backward)
