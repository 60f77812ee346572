"""A separate process that compiles a training step for devices that are not there, and describes it.

`python -m t5xpg.check.plan.compiling` reads {"experiment", "overrides", "gin_files", "fuses"} from its input and writes
one line of JSON. JAX_NUM_CPU_DEVICES says how many devices the CPU stands for; nothing of the model is allocated.
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from t5xpg.base.errors import UserError

# The machine code is thrown away, so it need not be optimised; bfloat16 stays where the model has it.
FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_allow_excess_precision=false",
)


def compile_step(
    experiment: str, overrides: Sequence[str], gin_files: Sequence[str], devices: int, fuses: bool
) -> dict[str, Any]:
    """`describe`, in another process with that many devices. fuses: see `memory.estimate`.

    Raises UserError as `describe` does, and RuntimeError where the process fails otherwise.
    """
    asked = {"experiment": experiment, "overrides": list(overrides), "gin_files": list(gin_files), "fuses": fuses}
    done = subprocess.run(
        [sys.executable, "-m", "t5xpg.check.plan.compiling"],
        input=json.dumps(asked),
        env={**os.environ, "XLA_FLAGS": " ".join(FLAGS), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise RuntimeError(f"The process that compiles the step ended with {done.returncode}:\n{last}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise UserError(answer["error"])
    return answer


def describe(experiment: str, overrides: Sequence[str], gin_files: Sequence[str], fuses: bool) -> dict[str, Any]:
    """Facts about the training step of an experiment, compiled for the devices that there are: see the keys."""

    from t5xpg.check.plan import memory, program
    from t5xpg.check.plan.collectives import collectives
    from t5xpg.check.plan.operations import operations
    from t5xpg.experiment import assembly, config

    loaded = config.load(experiment, overrides, gin_files).experiment
    built = assembly.assemble(loaded)
    state, shardings = built.abstract_state, built.shardings
    needed = memory.estimate(loaded, state, shardings, built.mesh, fuses=fuses)
    compiled = built.compile_train_step()
    read = program.read(compiled.as_text() or "")
    mesh = {str(axis): int(size) for axis, size in built.mesh.shape.items()}
    dtype = loaded.model.config.dtype

    analysis, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    found = operations(read, dtype)
    sent = collectives(read, mesh)
    return {
        "mesh": mesh,
        "devices": built.mesh.size,
        "dtype": dtype,
        "parameters": loaded.model.num_params,
        "rows": loaded.train_dataset.batch_size,
        "lengths": dict(loaded.lengths),
        "microbatches": loaded.num_microbatches,
        "model_flops": loaded.train_dataset.batch_size * loaded.flops_per_example(loaded.lengths),
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
        "operations": [[one.flops, one.bytes, times] for one, times in found.items()],
        "collectives": [{**dataclasses.asdict(one), "times": times} for one, times in sent.items()],
        "unknown_loops": read.unknown_loops,
    }


def main() -> int:
    """Answer the request in the standard input."""
    asked = json.loads(sys.stdin.read())
    try:
        answer = describe(asked["experiment"], asked["overrides"], asked["gin_files"], asked["fuses"])
    except UserError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
