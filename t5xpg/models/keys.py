"""Random keys by name: a key depends on the path of what uses it and on nothing else."""

from __future__ import annotations

import zlib

import jax


def named_key(key: jax.Array, name: str) -> jax.Array:
    """The key for `name` under `key`.

    Deriving by name instead of by splitting leaves all other keys as they are when a layer is added or when layers
    are made in another order. CRC-32 is the same on every machine and Python.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()))
