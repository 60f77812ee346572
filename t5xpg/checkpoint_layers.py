"""Checkpoints of scanned layers read as those of plain ones, and the other way round: the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from t5xpg.models.layer_layout import Tree, layers_as_in


def as_stored(wanted: Tree, found: Mapping[str, Any]) -> Tree:
    """The arrays to ask a checkpoint for that are wanted in another layout: each lies as the wanted one does.

    wanted: ShapeDtypeStructs; found: what the checkpoint says that it holds.
    """
    return layers_as_in(wanted, found, _together, _single)


def as_wanted(stored: Tree, wanted: Tree) -> Tree:
    """Arrays that were read as `as_stored` says, in the layout that is wanted. What is converted is used up."""
    return layers_as_in(stored, wanted, _stack, _cut)


def _together(layers: Sequence[jax.ShapeDtypeStruct], _: Any) -> jax.ShapeDtypeStruct:
    first = layers[0]
    spec = None if first.sharding is None else PartitionSpec(None, *first.sharding.spec)
    return _described((len(layers), *first.shape), first, spec)


def _single(layers: jax.ShapeDtypeStruct, _index: int, _: Any) -> jax.ShapeDtypeStruct:
    spec = None if layers.sharding is None else PartitionSpec(*layers.sharding.spec[1:])
    return _described(layers.shape[1:], layers, spec)


def _described(shape: tuple[int, ...], like: jax.ShapeDtypeStruct, spec: PartitionSpec | None) -> jax.ShapeDtypeStruct:
    sharding = None if spec is None else NamedSharding(like.sharding.mesh, spec)
    return jax.ShapeDtypeStruct(shape, like.dtype, sharding=sharding)


def _stack(layers: Sequence[jax.Array], wanted: jax.ShapeDtypeStruct) -> jax.Array:
    stacked = jax.jit(lambda *parts: jnp.stack(parts), out_shardings=wanted.sharding)(*layers)
    jax.block_until_ready(stacked)
    for layer in layers:
        layer.delete()
    return stacked


def _cut(layers: jax.Array, index: int, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.jit(lambda whole, at: whole[at], out_shardings=wanted.sharding)(layers, index)
