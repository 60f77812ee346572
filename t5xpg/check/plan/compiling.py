"""A training step compiled for the available devices, which a CPU may simulate, and the facts about its program."""

from typing import Any

from t5xpg.check.plan import memory, program
from t5xpg.check.plan.collectives import collectives
from t5xpg.check.plan.operations import operations
from t5xpg.experiment.assembly import assemble
from t5xpg.experiment.experiment import Experiment

# The machine code is not run, so it need not be optimised; bfloat16 arrays stay bfloat16.
_OPTIONS: dict[str, str | bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_allow_excess_precision": False,
}


def step_facts(experiment: Experiment, *, fuses: bool) -> dict[str, Any]:
    """The facts about an experiment's training step: see the keys. fuses: see `memory.estimate`."""
    assembly = assemble(experiment)
    state, shardings = assembly.abstract_state, assembly.shardings
    step_memory = memory.estimate(experiment, state, shardings, assembly.mesh, fuses=fuses)
    compiled = assembly.traced_train_step().lower().compile(_OPTIONS)
    compiled_program = program.read_program(compiled.as_text() or "")
    mesh = {str(axis): int(size) for axis, size in assembly.mesh.shape.items()}
    dtype = experiment.model.config.dtype

    analysis, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    operation_counts = operations(compiled_program, dtype)
    collective_counts = collectives(compiled_program, mesh)
    return {
        "mesh": mesh,
        "devices": assembly.mesh.size,
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
            "gradients": step_memory.gradients,
            "activations": step_memory.activations,
            "batch": step_memory.batch,
            "total": step_memory.total,
            "compiled": None if analysis is None else analysis.argument_size_in_bytes + analysis.temp_size_in_bytes,
        },
        "flops": {
            "products": sum(one.flops * times for one, times in operation_counts.items()),
            "cost_analysis": cost.get("flops"),
        },
        "bytes": sum(one.bytes * times for one, times in operation_counts.items()),
        "operations": operation_counts,
        "collectives": collective_counts,
        "unknown_loops": compiled_program.unknown_loops,
    }
