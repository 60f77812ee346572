"""One mesh of devices, of which one device is the smallest case, and what lies where on it.

Arrays carry logical axis names ("vocab", "mlp", ...); rules map those to the axes of the mesh. The batch is split over
"slice" and "data". Parameters and their optimiser statistics are split over "model", and under rules that say so over
"data" too; then they are gathered where they are used.
"""

from __future__ import annotations

from t5xpg.partitioning.compiling import jit_create, jit_eval_step, jit_train_step
from t5xpg.partitioning.layout import (
    batch_parts,
    batch_parts_of,
    batch_sharding,
    check_batch_size,
    params_shardings,
    path_names,
    replicated,
    shard_batch,
    state_shardings,
    with_shardings,
)
from t5xpg.partitioning.mesh import MeshConfig, make_mesh
from t5xpg.partitioning.rules import (
    DATA,
    MODEL,
    SLICE,
    STANDARD_RULES,
    LogicalAxisRules,
    standard_logical_axis_rules,
)

__all__ = [
    "DATA",
    "MODEL",
    "SLICE",
    "STANDARD_RULES",
    "LogicalAxisRules",
    "MeshConfig",
    "batch_parts",
    "batch_parts_of",
    "batch_sharding",
    "check_batch_size",
    "jit_create",
    "jit_eval_step",
    "jit_train_step",
    "make_mesh",
    "params_shardings",
    "path_names",
    "replicated",
    "shard_batch",
    "standard_logical_axis_rules",
    "state_shardings",
    "with_shardings",
]
