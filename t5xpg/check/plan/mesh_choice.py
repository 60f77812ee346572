"""The options MESH= and DEVICES=: the mesh of a plan or a check, and the number of its devices."""

import dataclasses
import math
import re
from collections.abc import Sequence

from t5xpg.base import paths
from t5xpg.base.errors import UserError, nearest
from t5xpg.distributed import MeshConfig

# The sizes among the fields of MeshConfig, one for each axis.
AXES = tuple(field.name for field in dataclasses.fields(MeshConfig) if field.type is int)
_SIZE = re.compile(r"(\w+)=(\d{1,6})")


def mesh_overrides(
    mesh: str | None, overrides: Sequence[str] = (), gin_files: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The overrides and gin files, followed by those for `mesh`; None for the experiment's own.

    Axes that are not named have the size 1. Raises UserError for unknown axes and fragments, with nearest names.
    """
    if not mesh:
        return [*overrides], [*gin_files]
    if "=" not in mesh:
        fragments = sorted(file.stem for file in (paths.GIN / "partitioning").glob("*.gin"))
        name = mesh.removeprefix("gin/partitioning/").removesuffix(".gin")
        if name not in fragments:
            raise UserError(
                f"MESH={mesh} is no file of gin/partitioning.{nearest(name, fragments)} "
                f"Or spell the sizes of its axes: MESH={AXES[0]}=8,{AXES[1]}=4."
            )
        return [*overrides], [*gin_files, f"gin/partitioning/{name}.gin"]
    sizes: dict[str, int] = {}
    for part in mesh.replace(" ", "").split(","):
        match = _SIZE.fullmatch(part)
        if match is None or int(match[2]) < 1:
            raise UserError(f"MESH={mesh}: cannot read {part!r}; expected axis=size, as in {AXES[0]}=8,{AXES[1]}=4.")
        if match[1] not in AXES:
            raise UserError(f"MESH={mesh}: a mesh has no axis {match[1]!r}.{nearest(match[1], AXES)}")
        if match[1] in sizes:
            raise UserError(f"MESH={mesh} says the size of {match[1]!r} twice.")
        sizes[match[1]] = int(match[2])
    bindings = [f"distributed.MeshConfig.{axis}={sizes.get(axis, 1)}" for axis in AXES]
    return [*overrides, *bindings, "distributed.MeshConfig.devices=None"], [*gin_files]


def device_count(config: MeshConfig, option: int | None) -> int:
    """The number of devices of a plan. option: DEVICES=, for a mesh that takes as many as there are.

    Without it, the smallest number that the mesh can have. Raises UserError where the mesh has another number.
    """
    sizes = [getattr(config, axis) for axis in AXES]
    least = math.prod(size for size in sizes if size > 0)
    mesh_devices = config.devices if config.devices is not None else None if -1 in sizes else least
    if mesh_devices is not None and option not in (None, mesh_devices):
        raise UserError(
            f"DEVICES={option}, and the mesh has {mesh_devices} devices: leave DEVICES= out, or choose another MESH=."
        )
    count = mesh_devices or option or least
    if count % least:
        raise UserError(f"DEVICES={count} does not divide by the {least} devices that the mesh needs: {config}.")
    return count
