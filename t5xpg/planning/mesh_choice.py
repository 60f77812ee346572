"""MESH=: a fragment of gin/partitioning by its name, or sizes of axes such as data=8,model=4."""

from __future__ import annotations

import dataclasses
import math
import re

from t5xpg import paths
from t5xpg.errors import UserError, nearest
from t5xpg.partitioning import MeshConfig

# axes by the fields of MeshConfig: all that are whole numbers, and none that may be missing
AXES = tuple(field.name for field in dataclasses.fields(MeshConfig) if field.type == "int")
_SIZE = re.compile(r"(\w+)=(\d{1,6})")


def overrides(mesh: str | None) -> tuple[list[str], list[str]]:
    """Bindings and gin files that lay an experiment out on `mesh`; None for its own.

    Axes that are not spelled out have the size 1. Raises UserError for unknown axes and fragments, with nearest names.
    """
    if not mesh:
        return [], []
    if "=" not in mesh:
        fragments = sorted(file.stem for file in (paths.GIN / "partitioning").glob("*.gin"))
        name = mesh.removeprefix("gin/partitioning/").removesuffix(".gin")
        if name not in fragments:
            raise UserError(
                f"MESH={mesh} is no file of gin/partitioning.{nearest(name, fragments)} "
                f"Or spell the sizes of its axes: MESH={AXES[0]}=8,{AXES[1]}=4."
            )
        return [], [f"gin/partitioning/{name}.gin"]
    sizes = dict.fromkeys(AXES, 1)
    for part in mesh.replace(" ", "").split(","):
        found = _SIZE.fullmatch(part)
        if found is None or int(found[2]) < 1:
            raise UserError(f"MESH={mesh}: cannot read {part!r}; expected axis=size, as in {AXES[0]}=8,{AXES[1]}=4.")
        if found[1] not in sizes:
            raise UserError(f"MESH={mesh}: a mesh has no axis {found[1]!r}.{nearest(found[1], AXES)}")
        sizes[found[1]] = int(found[2])
    bindings = [f"partitioning.MeshConfig.{axis}={size}" for axis, size in sizes.items()]
    return [*bindings, "partitioning.MeshConfig.devices=None"], []


def device_count(config: MeshConfig, asked: int | None) -> int:
    """How many devices a plan is for. asked: DEVICES=, for a mesh that takes as many as there are.

    Without it, that is as few as the mesh can have. Raises UserError where the mesh has another number.
    """
    sizes = [getattr(config, axis) for axis in AXES]
    given = math.prod(size for size in sizes if size > 0)
    own = config.devices if config.devices is not None else None if -1 in sizes else given
    if own is not None and asked not in (None, own):
        raise UserError(
            f"DEVICES={asked}, and the mesh has {own} devices: leave DEVICES= out, or choose another MESH=."
        )
    count = own or asked or given
    if count % given:
        raise UserError(f"DEVICES={count} does not divide by the {given} devices that the mesh needs: {config}.")
    return count
