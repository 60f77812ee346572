"""What MESH= and DEVICES= say: the mesh that a plan or a check is for, and how many devices it has."""

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
    """Overrides and gin files, and behind them those that lay an experiment out on `mesh`; None for its own.

    Axes that are not spelled out have the size 1. Raises UserError for unknown axes and fragments, with nearest names.
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
    sizes = dict.fromkeys(AXES, 1)
    for part in mesh.replace(" ", "").split(","):
        found = _SIZE.fullmatch(part)
        if found is None or int(found[2]) < 1:
            raise UserError(f"MESH={mesh}: cannot read {part!r}; expected axis=size, as in {AXES[0]}=8,{AXES[1]}=4.")
        if found[1] not in sizes:
            raise UserError(f"MESH={mesh}: a mesh has no axis {found[1]!r}.{nearest(found[1], AXES)}")
        sizes[found[1]] = int(found[2])
    bindings = [f"distributed.MeshConfig.{axis}={size}" for axis, size in sizes.items()]
    return [*overrides, *bindings, "distributed.MeshConfig.devices=None"], [*gin_files]


def device_count(config: MeshConfig, given: int | None) -> int:
    """How many devices a plan is for. given: DEVICES=, for a mesh that takes as many as there are.

    Without `given`, the smallest number that the mesh can have. Raises UserError where the mesh has another number.
    """
    sizes = [getattr(config, axis) for axis in AXES]
    least = math.prod(size for size in sizes if size > 0)
    own = config.devices if config.devices is not None else None if -1 in sizes else least
    if own is not None and given not in (None, own):
        raise UserError(
            f"DEVICES={given}, and the mesh has {own} devices: leave DEVICES= out, or choose another MESH=."
        )
    count = own or given or least
    if count % least:
        raise UserError(f"DEVICES={count} does not divide by the {least} devices that the mesh needs: {config}.")
    return count
