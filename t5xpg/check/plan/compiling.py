"""A training step, compiled for the devices that there are, for which a CPU may stand, and described."""

from typing import Any

from t5xpg.check.plan import memory, program
from t5xpg.check.plan.collectives import collectives
from t5xpg.check.plan.operations import operations
from t5xpg.experiment import assembly
from t5xpg.experiment.experiment import Experiment

# The machine code is thrown away, so it need not be optimised; bfloat16 stays where the model has it.
_OPTIONS: dict[str, str | bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_allow_excess_precision": False,
}


def describe(experiment: Experiment, *, fuses: bool) -> dict[str, Any]:
    """Facts about the training step of an experiment: see the keys. fuses: see `memory.estimate`."""
    built = assembly.assemble(experiment)
    state, shardings = built.abstract_state, built.shardings
    needed = memory.estimate(experiment, state, shardings, built.mesh, fuses=fuses)
    compiled = built.traced_train_step().lower().compile(_OPTIONS)
    read = program.read(compiled.as_text() or "")
    mesh = {str(axis): int(size) for axis, size in built.mesh.shape.items()}
    dtype = experiment.model.config.dtype

    analysis, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    found = operations(read, dtype)
    sent = collectives(read, mesh)
    return {
        "mesh": mesh,
        "devices": built.mesh.size,
        "dtype": dtype,
        "parameters": experiment.model.num_params,
        "rows": experiment.train_dataset.batch_size,
        "lengths": dict(experiment.lengths),
        "microbatches": experiment.num_microbatches,
        "model_flops": experiment.train_dataset.batch_size * experiment.flops_per_example(experiment.lengths),
        "memory": {
            "parameters": sum(
                memory.bytes_on_device(getattr(state, name), getattr(shardings, name))
                for name in ("params", "average", "frozen")
            ),
            "optimizer": memory.bytes_on_device(state.opt_state, shardings.opt_state),
            "gradients": needed.gradients,
            "activations": needed.activations,
            "batch": needed.batch,
            "total": needed.total,
            "compiled": None if analysis is None else analysis.argument_size_in_bytes + analysis.temp_size_in_bytes,
        },
        "flops": {
            "products": sum(one.flops * times for one, times in found.items()),
            "cost_analysis": cost.get("flops"),
        },
        "bytes": sum(one.bytes * times for one, times in found.items()),
        "operations": found,
        "collectives": sent,
        "unknown_loops": read.unknown_loops,
    }
