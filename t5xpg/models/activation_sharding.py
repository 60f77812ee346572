"""The sharding of activations: models name the logical axes of their arrays, and a mesh says how those are split.

Without a mesh of several devices nothing is split, and nothing of this becomes part of the compiled program.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import jax
from jax import lax

Product = Callable[[jax.Array, jax.Array], jax.Array]


class ActivationSharding(Protocol):
    """The sharding of arrays over the devices of a mesh, by their logical axes."""

    def split(self, x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        """x, with the sharding that the rules give an array with these axes."""

    def is_gathered(self, axes: tuple[str, ...]) -> bool:
        """True if a weight is stored split over the devices over which the rows of a batch are split, too."""

    def gathered(self, weight: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        """The weight, made whole on every device over which it is stored split."""

    def summed_over_rows(self, product: Product, a: jax.Array, b: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        """product(a, b) over the rows of all devices, with the sharding of a weight that has these axes."""


_current: ContextVar[ActivationSharding | None] = ContextVar("activation_sharding", default=None)


@contextmanager
def on_mesh(sharding: ActivationSharding) -> Iterator[None]:
    """Apply `sharding` to the arrays that are traced in the block."""
    token = _current.set(sharding)
    try:
        yield
    finally:
        _current.reset(token)


def on_several_devices() -> bool:
    """True if the traced arrays are split over the devices of a mesh."""
    return _current.get() is not None


def rows(x: jax.Array, last: str) -> jax.Array:
    """x [B, ..., `last`], split over devices by logical axes; axes between are lengths or beams. Its gradient, too."""
    sharding = _current.get()
    return x if sharding is None else sharding.split(x, ("batch", *["length"] * (x.ndim - 2), last))


def is_gathered(*axes: str) -> bool:
    """True if a weight with these axes is stored split over devices that all need it whole."""
    sharding = _current.get()
    return sharding is not None and sharding.is_gathered(axes)


def gathered(weight: jax.Array, *axes: str) -> jax.Array:
    """A weight, whole for the multiplication with all rows; its gradient is split as the weight is stored."""
    sharding = _current.get()
    return weight if sharding is None else _gathered(weight, axes, sharding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gathered(weight: jax.Array, axes: tuple[str, ...], sharding: ActivationSharding) -> jax.Array:
    return sharding.gathered(weight, axes)


_gathered.defvjp(
    lambda weight, axes, sharding: (sharding.gathered(weight, axes), None),
    lambda axes, sharding, _, gradient: (sharding.split(gradient, axes),),
)


def gathered_again(weight: jax.Array, gradient: jax.Array, *axes: str) -> jax.Array:
    """As `gathered`, for the backward pass: only after `gradient`, or XLA would keep it from the forward pass on."""
    sharding = _current.get()
    if sharding is not None and sharding.is_gathered(axes):
        weight, _ = lax.optimization_barrier((weight, gradient))
        weight = sharding.split(weight, axes)  # as it is stored, or XLA would gather it before the barrier
    return gathered(weight, *axes)


def summed_over_rows(product: Product, a: jax.Array, b: jax.Array, *axes: str) -> jax.Array:
    """product(a, b), the gradient of a weight with these axes: a sum over rows.

    a: [N, I], whose columns are the weight's first axis, or [N], from which `product` makes that axis. b: [N, O].
    """
    sharding = _current.get()
    return product(a, b) if sharding is None else sharding.summed_over_rows(product, a, b, axes)
