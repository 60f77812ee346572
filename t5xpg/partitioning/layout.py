"""Where the state and the batches lie on a mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5xpg.errors import UserError
from t5xpg.partitioning.rules import BATCH_AXES, STANDARD_RULES, LogicalAxisRules, as_tuple, parts, spec_of
from t5xpg.state import TrainState


def replicated(mesh: Mesh) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(mesh, PartitionSpec())


def params_shardings(axes: Any, abstract_params: Any, mesh: Mesh, rules: LogicalAxisRules = STANDARD_RULES) -> Any:
    """A NamedSharding for every parameter.

    axes: the tree of logical axis names (`model.logical_axes()`); abstract_params: arrays or ShapeDtypeStructs.
    Raises UserError where a dimension does not divide by the size of its mesh axis, or an axis has no rule.
    """

    def sharding(path: Any, names: tuple[str, ...], leaf: Any) -> NamedSharding:
        try:
            spec = spec_of(names, mesh.shape, rules)
        except UserError as error:
            raise UserError(f"{_path_text(path)}: {error}") from error
        for name, size, axes in zip(names, leaf.shape, spec, strict=False):
            count, along = parts(axes, mesh.shape), " x ".join(as_tuple(axes))
            if size % count:
                raise UserError(
                    f"{_path_text(path)} has the shape {tuple(leaf.shape)}: its dimension {name!r} of {size} cannot be "
                    f"split over the {count} devices of the mesh's axis {along!r}. "
                    f"Use a size of {along!r} that divides {size}."
                )
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(
        sharding, axes, abstract_params, is_leaf=lambda node: isinstance(node, tuple)
    )


def state_shardings(
    axes: Any, abstract_state: TrainState, mesh: Mesh, rules: LogicalAxisRules = STANDARD_RULES
) -> TrainState:
    """A NamedSharding for every array of the state.

    An array of the optimiser lies as the parameter whose path ends its own path and whose shape it has; everything
    else (counts, Adafactor's rows and columns) is replicated, as in T5X.
    """
    params = params_shardings(axes, abstract_state.params, mesh, rules)
    known: dict[tuple[str, ...], tuple[tuple[int, ...], NamedSharding]] = {
        path_names(path): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(abstract_state.params), jax.tree.leaves(params), strict=True
        )
    }

    def optimizer_sharding(path: Any, leaf: Any) -> NamedSharding:
        names = path_names(path)
        for start in range(len(names)):
            shape, sharding = known.get(names[start:], (None, None))
            if sharding is not None and shape == leaf.shape:
                return sharding
        return replicated(mesh)

    return TrainState(
        step=replicated(mesh),
        params=params,
        opt_state=jax.tree_util.tree_map_with_path(optimizer_sharding, abstract_state.opt_state),
    )


def with_shardings(abstract_tree: Any, shardings: Any) -> Any:
    """ShapeDtypeStructs that say where each array lies: what a checkpoint is restored onto."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), abstract_tree, shardings
    )


def batch_parts(mesh: Mesh) -> int:
    """Into how many parts a batch is split."""
    return parts(BATCH_AXES, mesh.shape)


def batch_parts_of(sharding: NamedSharding) -> int:
    """Into how many parts an array is split over the devices that batches are split over."""
    axes = [axis for entry in sharding.spec for axis in as_tuple(entry) if axis in BATCH_AXES]
    return parts(tuple(axes), sharding.mesh.shape)


def check_batch_size(batch_size: int, mesh: Mesh, num_microbatches: int = 1) -> None:
    """Raises UserError where a global batch does not split into equal parts over devices and microbatches."""
    devices, processes = batch_parts(mesh), jax.process_count()
    least = math.lcm(devices, processes) * num_microbatches
    if num_microbatches < 1 or batch_size < 1 or batch_size % least:
        raise UserError(
            f"BATCH_SIZE is {batch_size}: it does not divide into {devices} data-parallel devices x {num_microbatches} "
            f"microbatches. Use a multiple of {max(least, 1)}."
        )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over the mesh's axis "data", and over its slices."""
    axes = tuple(axis for axis in BATCH_AXES if axis in mesh.shape)
    return NamedSharding(mesh, PartitionSpec(axes[0] if len(axes) == 1 else axes))


def shard_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """The rows that this process holds, as global arrays split over the mesh as `batch_sharding` says."""
    sharding = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}


def path_names(path: Any) -> tuple[str, ...]:
    """The names along a jax key path: of dict keys, attributes and positions alike."""
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)


def _path_text(path: Any) -> str:
    return "/".join(path_names(path))
