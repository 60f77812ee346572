"""Logical axes and where they go: an array names its axes ("vocab", "mlp", …), rules say which axes of a mesh split it.

Rules are T5X's: pairs, the first ones first. A name may have several, and an axis of the mesh splits one dimension of
an array only; so a later rule of a name counts where an earlier one's axis is taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec

from t5xpg.errors import UserError, nearest

# Of a mesh, from the slowest connection to the fastest: slices of hardware, which a network connects; batches; layers.
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
    splits activations over "model" also where they are as wide as the embedding. additional_rules: looked at after all
    others. Raises UserError for other numbers of dims.
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
        *((name, tuple(axes) if isinstance(axes, list) else axes) for name, axes in additional_rules),
    )


STANDARD_RULES = standard_logical_axis_rules()


def spec_of(names: Sequence[str], mesh_shape: Mapping[str, int], rules: LogicalAxisRules) -> PartitionSpec:
    """Which axes of a mesh split the dimensions with these logical names. Axes of one device split nothing.

    mesh_shape: {axis: size}. Raises UserError for a name that no rule has.
    """
    known = {name for name, _ in rules}
    for name in names:
        if name not in known:
            raise UserError(f"no rule for the axis {name!r}.{nearest(name, known)}")
    chosen: dict[int, MeshAxes] = {}
    taken: set[str] = set()
    for name, axes in rules:
        free = [index for index, other in enumerate(names) if other == name and index not in chosen]
        wanted = tuple(axis for axis in as_tuple(axes) if mesh_shape.get(axis, 1) > 1)
        if not free or taken.intersection(wanted):
            continue
        taken.update(wanted)
        if wanted or axes is None:
            chosen[free[0]] = wanted[0] if len(wanted) == 1 else wanted or None
    spec = [chosen.get(index) for index in range(len(names))]
    while spec and spec[-1] is None:
        spec.pop()
    return PartitionSpec(*spec)


def parts(axes: MeshAxes, mesh_shape: Mapping[str, int]) -> int:
    """Into how many parts these axes of a mesh split a dimension."""
    return math.prod(mesh_shape.get(axis, 1) for axis in as_tuple(axes))


def as_tuple(axes: MeshAxes) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
