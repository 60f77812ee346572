"""Dropout as T5X applies it: the mask is shared along the length of the sequence."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from t5xpg.models.keys import named_key


@dataclass(frozen=True)
class Dropout:
    """The dropout of one place in the network.

    rate: share of the values that are set to zero, in [0, 1).
    key: a jax key, or None where nothing is dropped (evaluation, decoding).
    """

    rate: float
    key: jax.Array | None = None

    def at(self, name: str) -> Dropout:
        """The dropout of the part called `name`: same rate, a key of its own."""
        if not self.active:
            return OFF
        assert self.key is not None
        return Dropout(self.rate, named_key(self.key, name))

    @property
    def active(self) -> bool:
        return self.key is not None and self.rate > 0.0

    def __call__(self, x: jax.Array, shared_axis: int | None = -2) -> jax.Array:
        """Zeroes values of `x` and scales the others by 1 / (1 - rate).

        shared_axis: the axis along which one decision holds for all (T5X: -2, the length; in attention weights the
        queries); None decides for each value.
        """
        if not self.active:
            return x
        assert self.key is not None
        shape = list(x.shape)
        if shared_axis is not None:
            shape[shared_axis] = 1
        keep_probability = 1.0 - self.rate
        keep = jax.random.bernoulli(self.key, keep_probability, tuple(shape))
        return jnp.where(keep, x / keep_probability, jnp.zeros((), x.dtype))


OFF = Dropout(0.0, None)
