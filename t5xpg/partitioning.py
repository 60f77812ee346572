"""One mesh of devices, of which one device is the smallest case, and what lies where on it.

Arrays carry logical axis names ("vocab", "mlp", ...); rules map those to the axes of the mesh. The batch is split over
"data"; parameters and their optimiser statistics are split over "model" and replicated over "data".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from t5xpg.errors import UserError, nearest
from t5xpg.state import TrainState

DATA, MODEL = "data", "model"
LogicalAxisRules = tuple[tuple[str, str | None], ...]

# T5X's standard rules for one-dimensional partitioning of activations and parameters.
STANDARD_RULES: LogicalAxisRules = (
    ("batch", DATA),
    ("vocab", MODEL),
    ("embed", None),
    ("mlp", MODEL),
    ("heads", MODEL),
    ("kv", None),
    ("joined_kv", MODEL),
    ("relpos_buckets", None),
    ("length", None),
)


@dataclass(frozen=True)
class MeshConfig:
    """How many devices along each axis of the mesh.

    data: -1 takes all devices that `model` leaves. devices: use only the first so many; None takes all, or, where
    `data` is given, as many as data * model.
    """

    data: int = -1
    model: int = 1
    devices: int | None = None
    rules: LogicalAxisRules = STANDARD_RULES


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """A mesh with the axes "data" and "model", from `devices` or all devices of the default backend.

    Raises UserError where the sizes do not fit the devices.
    """
    available = jax.devices() if devices is None else devices
    if config.model < 1 or (config.data < 1 and config.data != -1):
        raise UserError(
            f"MeshConfig.data is {config.data} and MeshConfig.model is {config.model}; "
            "both have to be 1 or more, or data -1 for all that is left."
        )
    if config.devices is not None:
        count = config.devices
    elif config.data == -1:
        count = len(available)
    else:
        count = config.data * config.model
    if not 1 <= count <= len(available):
        kind = available[0].platform.upper()
        raise UserError(
            f"The mesh asks for {count} devices ({_axes_text(config)}); here {_are(len(available), kind)}. "
            "Lower MeshConfig.data, MeshConfig.model or MeshConfig.devices."
        )
    data = count // config.model if config.data == -1 else config.data
    if data * config.model != count:
        raise UserError(
            f"The mesh asks for {_axes_text(config)}, which does not make {count} devices. "
            "data * model has to be the number of devices."
        )
    kinds = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((data, config.model), (DATA, MODEL), axis_types=kinds, devices=available[:count])


def replicated(mesh: Mesh) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(mesh, PartitionSpec())


def params_shardings(axes: Any, abstract_params: Any, mesh: Mesh, rules: LogicalAxisRules = STANDARD_RULES) -> Any:
    """A NamedSharding for every parameter.

    axes: the tree of logical axis names (`model.logical_axes()`); abstract_params: arrays or ShapeDtypeStructs.
    Raises UserError where a dimension does not divide by the size of its mesh axis, or an axis has no rule.
    """
    table = dict(rules)

    def sharding(path: Any, names: tuple[str, ...], leaf: Any) -> NamedSharding:
        for name in names:
            if name not in table:
                raise UserError(f"{_path_text(path)}: no rule for the axis {name!r}.{nearest(name, table)}")
        spec: list[str | None] = []
        for name, size in zip(names, leaf.shape, strict=True):
            axis = table[name] if mesh.shape.get(table[name] or "", 1) > 1 else None
            # An array's second dimension of the same mesh axis stays whole: a mesh axis can split one only.
            axis = None if axis in spec else axis
            if axis is not None and size % mesh.shape[axis]:
                raise UserError(
                    f"{_path_text(path)} has the shape {tuple(leaf.shape)}: its dimension {name!r} of {size} cannot be "
                    f"split over the {mesh.shape[axis]} devices of the mesh's axis {axis!r}. "
                    f"Use a size of {axis!r} that divides {size}."
                )
            spec.append(axis)
        while spec and spec[-1] is None:
            spec.pop()
        return NamedSharding(mesh, PartitionSpec(*spec))

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


def check_batch_size(batch_size: int, mesh: Mesh, num_microbatches: int = 1) -> None:
    """Raises UserError where a global batch does not split into equal parts over devices and microbatches."""
    data, processes = mesh.shape[DATA], jax.process_count()
    parts = math.lcm(data, processes) * num_microbatches
    if num_microbatches < 1 or batch_size < 1 or batch_size % parts:
        raise UserError(
            f"BATCH_SIZE is {batch_size}: it does not divide into {data} data-parallel devices x {num_microbatches} "
            f"microbatches. Use a multiple of {max(parts, 1)}."
        )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over the mesh's axis "data"."""
    return NamedSharding(mesh, PartitionSpec(DATA))


def shard_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """The rows that this process holds, as global arrays split over the mesh's axis "data"."""
    sharding = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}


def jit_create(create: Callable[..., TrainState], shardings: TrainState, *arguments: Any) -> TrainState:
    """The result of `create(*arguments)`, made in place: every device makes its own part. The arguments are used up."""
    donated = tuple(range(len(arguments)))
    return jax.jit(create, out_shardings=shardings, donate_argnums=donated)(*arguments)


def jit_train_step(step: Callable[..., Any], mesh: Mesh, shardings: TrainState, more: int = 0) -> Any:
    """`step(state, batch, ...) -> (state, metrics)`, compiled; the old state's memory is reused for the new one.

    more: how many further arguments `step` takes, which lie on every device.
    """
    return jax.jit(
        step,
        in_shardings=(shardings, batch_sharding(mesh), *[replicated(mesh)] * more),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
    )


def jit_eval_step(step: Callable[..., Any], mesh: Mesh, params: Any, more: int = 0) -> Any:
    """`step(params, batch, ...) -> metrics`, compiled. params: the parameters' shardings; more: as above."""
    return jax.jit(
        step,
        in_shardings=(params, batch_sharding(mesh), *[replicated(mesh)] * more),
        out_shardings=replicated(mesh),
    )


def path_names(path: Any) -> tuple[str, ...]:
    """The names along a jax key path: of dict keys, attributes and positions alike."""
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)


def _path_text(path: Any) -> str:
    return "/".join(path_names(path))


def _axes_text(config: MeshConfig) -> str:
    return f"data {'as many as there are' if config.data == -1 else config.data} x model {config.model}"


def _are(count: int, kind: str) -> str:
    return f"is 1 {kind} device" if count == 1 else f"are {count} {kind} devices"
