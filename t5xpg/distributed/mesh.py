"""The mesh: its axes, their sizes, its devices, and the rules that map logical axes of arrays to its axes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, PartitionSpec

from t5xpg.base.errors import UserError, nearest

# Axes of a mesh, from the slowest connection to the fastest: slices of hardware (joined by a network), batches, layers.
SLICE, DATA, MODEL = "slice", "data", "model"
BATCH_AXES = (SLICE, DATA)  # a batch is split over them
MeshAxes = str | tuple[str, ...] | None
LogicalAxisRules = tuple[tuple[str, MeshAxes], ...]


def standard_logical_axis_rules(
    activation_partitioning_dims: int = 1,
    parameter_partitioning_dims: int = 1,
    additional_rules: Sequence[tuple[str, MeshAxes]] = (),
) -> LogicalAxisRules:
    """T5X's rules under T5X's name and arguments (t5x/partitioning.py), for meshes with slices too.

    parameter_partitioning_dims: 1 splits parameters over "model" alone, 2 over "data" too (FSDP). activation_...: 2
    splits activations over "model" also where they are as wide as the embedding. additional_rules: tried after all
    others. Raises UserError for dims other than 1 and 2.
    """
    for name, dims in (("activation", activation_partitioning_dims), ("parameter", parameter_partitioning_dims)):
        if dims not in (1, 2):
            raise UserError(f"standard_logical_axis_rules.{name}_partitioning_dims is {dims!r}; it has to be 1 or 2.")
    embed: list[tuple[str, MeshAxes]] = [("embed", MODEL)] if activation_partitioning_dims == 2 else []
    embed += [("embed", DATA)] if parameter_partitioning_dims == 2 else []
    return (
        ("batch", BATCH_AXES),
        ("vocab", MODEL),
        ("mlp", MODEL),
        ("heads", MODEL),
        ("kv", None),
        ("joined_kv", MODEL),
        *embed,
        ("embed", None),
        ("relpos_buckets", None),
        ("length", None),
        ("layers", None),
        ("rank", None),
        *additional_rules,
    )


STANDARD_RULES = standard_logical_axis_rules()


def spec_of(names: Sequence[str], mesh_shape: Mapping[str, int], rules: LogicalAxisRules) -> PartitionSpec:
    """The axes of a mesh that split the dimensions with these logical names. Axes of one device split nothing.

    mesh_shape: {axis: size}. Raises UserError for a name that no rule has.
    """
    known = {name for name, _ in rules}
    for name in names:
        if name not in known:
            raise UserError(f"no rule for the axis {name!r}.{nearest(name, known)}")
    axes_of_dimension: dict[int, MeshAxes] = {}
    used_axes: set[str] = set()
    for name, axes in rules:
        unassigned = [index for index, other in enumerate(names) if other == name and index not in axes_of_dimension]
        mesh_axes = tuple(axis for axis in as_tuple(axes) if mesh_shape.get(axis, 1) > 1)
        if not unassigned or used_axes.intersection(mesh_axes):
            continue
        used_axes.update(mesh_axes)
        if mesh_axes or axes is None:
            axes_of_dimension[unassigned[0]] = mesh_axes[0] if len(mesh_axes) == 1 else mesh_axes or None
    spec = [axes_of_dimension.get(index) for index in range(len(names))]
    while spec and spec[-1] is None:
        spec.pop()
    return PartitionSpec(*spec)


def num_parts(axes: MeshAxes, mesh_shape: Mapping[str, int]) -> int:
    """The number of parts into which these axes of a mesh split a dimension."""
    return math.prod(mesh_shape.get(axis, 1) for axis in as_tuple(axes))


def as_tuple(axes: MeshAxes) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


@dataclass(frozen=True)
class MeshConfig:
    """The number of devices along each axis of the mesh, and the axes of arrays that are split over them.

    data: -1 takes all devices that `slices` and `model` leave. devices: how many to use, from the first one on; None
    uses all, or slices * data * model where `data` is given. slices: how many groups of data * model devices a network
    connects (slices of TPUs, machines with GPUs); in T5X's words, the mesh is (1, data, model) over ICI and
    (slices, 1, 1) over DCN. rules: (axis of arrays, axis of the mesh that splits it).
    """

    data: int = -1
    model: int = 1
    devices: int | None = None
    slices: int = 1
    rules: LogicalAxisRules = STANDARD_RULES

    def __post_init__(self) -> None:
        # gin hands lists over; a frozen dataclass has to be hashable
        rules = ((name, tuple(axes) if isinstance(axes, list) else axes) for name, axes in self.rules)
        object.__setattr__(self, "rules", tuple(rules))
        for axis in sorted({axis for _, axes in self.rules for axis in as_tuple(axes)} - {SLICE, DATA, MODEL}):
            raise UserError(f"MeshConfig.rules: a mesh has no axis {axis!r}.{nearest(axis, (SLICE, DATA, MODEL))}")
        if self.model < 1 or self.slices < 1 or (self.data < 1 and self.data != -1):
            raise UserError(
                f"MeshConfig.data is {self.data}, MeshConfig.model is {self.model} and MeshConfig.slices is "
                f"{self.slices}; all have to be 1 or more, or data -1 for all that is left."
            )

    def shape(self, devices: int) -> dict[str, int]:
        """{axis: size} for this number of devices; "slice" is an axis only where there are several slices."""
        data = max(devices // (self.slices * self.model), 1) if self.data == -1 else self.data
        return ({SLICE: self.slices} if self.slices > 1 else {}) | {DATA: data, MODEL: self.model}

    def __str__(self) -> str:
        data = "as many as there are" if self.data == -1 else self.data
        return f"{f'slices {self.slices} x ' if self.slices > 1 else ''}data {data} x model {self.model}"


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """A mesh of `devices` with the axes "data" and "model", and "slice" before them where there are several slices.

    devices: by default all of the default backend. Raises UserError where the sizes of the mesh do not fit them.
    """
    available = jax.devices() if devices is None else devices
    if config.devices is not None:
        count = config.devices
    elif config.data == -1:
        count = len(available)
    else:
        count = config.slices * config.data * config.model
    if not 1 <= count <= len(available):
        kind, number = available[0].platform.upper(), len(available)
        available_text = f"is 1 {kind} device" if number == 1 else f"are {number} {kind} devices"
        raise UserError(
            f"The mesh asks for {count} devices ({config}); here {available_text}. "
            "Lower MeshConfig.data, MeshConfig.model, MeshConfig.slices or MeshConfig.devices."
        )
    shape = config.shape(count)
    if math.prod(shape.values()) != count:
        factors = f"{'slices * ' if config.slices > 1 else ''}data * model"
        raise UserError(
            f"The mesh asks for {config}, which does not make {count} devices. {factors} has to be the number of "
            "devices."
        )
    axis_types = (AxisType.Auto,) * len(shape)
    if config.slices == 1:
        return jax.make_mesh(tuple(shape.values()), tuple(shape), axis_types=axis_types, devices=available[:count])
    return Mesh(_devices_by_slice(available[:count], shape), tuple(shape), axis_types=axis_types)


def _devices_by_slice(devices: list[jax.Device], shape: dict[str, int]) -> np.ndarray:
    """The devices as an array [slices, data, model], with the devices of each slice together.

    Raises UserError where the hardware has another number of slices, or slices of another size.
    """
    slices, data, model = shape.values()
    hardware_slices = len({getattr(device, "slice_index", 0) for device in devices})
    processes = len({device.process_index for device in devices})
    if hardware_slices == 1 and processes != slices:
        # simulated, or several groups on one machine: neighbours make a slice
        return np.asarray(devices, object).reshape(slices, data, model)
    try:
        return mesh_utils.create_hybrid_device_mesh(
            (1, data, model), (slices, 1, 1), devices, process_is_granule=hardware_slices == 1
        )
    except ValueError as error:
        raise UserError(
            f"MeshConfig.slices is {slices}, each of {data * model} devices, and these {len(devices)} devices lie in "
            f"{processes if hardware_slices == 1 else hardware_slices} slices. Set MeshConfig.slices to that, and data "
            "* model to the devices of one."
        ) from error
