"""The mesh of devices, the sharding of arrays over it, and the hosts that share it. One device is the smallest mesh.

Arrays carry logical axis names ("vocab", "mlp", ...); rules map those to the axes of the mesh. The batch is split over
"slice" and "data". Parameters and their optimiser statistics are split over "model". Some rules split them over "data"
too; parameters are then gathered where they are used.

On several hosts every process runs the same program. Each reads the rows of a batch that its devices hold
(`host_rows`). The first process writes the run's files; every process writes its own part of a checkpoint.
"""

# ruff: noqa: F401  the names that other subpackages and gin files import
from t5xpg.distributed.group import ALONE, Group, Processes
from t5xpg.distributed.joining import join
from t5xpg.distributed.mesh import (
    MODEL,
    MeshConfig,
    make_mesh,
    standard_logical_axis_rules,
)
from t5xpg.distributed.sharding import (
    batch_parts,
    batch_parts_of,
    batch_sharding,
    check_batch_size,
    jit_create,
    jit_eval_step,
    jit_train_step,
    params_shardings,
    path_names,
    replicated,
    state_shardings,
    with_shardings,
)
