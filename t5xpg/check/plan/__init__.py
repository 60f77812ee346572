"""`make plan`: the memory and time of a training step on devices that are not available here.

The step is compiled for as many simulated devices as the mesh has, from shapes alone. The compiled program shows what
each device holds, computes and sends; published figures of the device give the time.
"""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.extend import backend

from t5xpg.base.errors import UserError
from t5xpg.base.files import write_json
from t5xpg.base.paths import shown
from t5xpg.base.progress import duration
from t5xpg.check.plan import devices as device_table
from t5xpg.check.plan import memory, page, program, roofline
from t5xpg.check.plan.collectives import Collective, collectives
from t5xpg.check.plan.devices import REACHED, USABLE_MEMORY, Device
from t5xpg.check.plan.mesh_choice import device_count, mesh_overrides
from t5xpg.check.plan.operations import operations
from t5xpg.experiment import config
from t5xpg.experiment.assembly import assemble
from t5xpg.experiment.experiment import Experiment

# Seconds. Shorter steps mostly spend their time on starting operations, which is not counted.
_SHORT = 0.02
# The machine code is not run, so it need not be optimised; bfloat16 arrays stay bfloat16.
_OPTIONS: dict[str, str | bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_allow_excess_precision": False,
}


def plan(
    experiment: str,
    overrides: Sequence[str],
    gin_files: Sequence[str],
    *,
    mesh: str | None = None,
    device: str | None = None,
    devices: int | None = None,
    as_json: bool = False,
    output: Path | None = None,
) -> int:
    """Print the memory and time of a step of an experiment; returns 1 if it does not fit the devices, otherwise 0.

    mesh: a fragment of gin/partitioning, or sizes such as data=8,model=4; None for the experiment's. device: a row of
    the table, or "cpu" for this machine's. devices: their number, for a mesh that takes as many as there are. output: a
    file for the plan as JSON. Raises UserError for an experiment that cannot be built, and for unknown names.
    """
    overrides, gin_files = mesh_overrides(mesh, overrides, gin_files)
    loaded = config.load(experiment, overrides, gin_files)
    count = device_count(loaded.experiment.mesh, devices)
    dtype, row = loaded.experiment.model.config.dtype, device_table.find_device(device)
    if row is not None and dtype not in row.peak:
        raise UserError(
            f"Nothing is published on the products of a {row.name} in {dtype}. Set DTYPE to {' or '.join(row.peak)}, "
            "or name another DEVICE."
        )
    plural = "" if count == 1 else "s"
    print(f"plan: compiling the step for {count} simulated device{plural} …", file=sys.stderr, flush=True)
    flags = os.environ.pop("XLA_FLAGS", "")  # for this machine's own programs
    _simulate(count)
    facts = step_facts(loaded.experiment, fuses=row is not None)
    os.environ["XLA_FLAGS"] = flags
    if row is None:
        _simulate(1)
        row = device_table.measured_cpu(dtype, count)
    contents = make_plan(facts, row)
    contents |= {"experiment": loaded.name, "total_steps": loaded.experiment.total_steps}
    contents["time"]["run"] = duration(contents["time"]["step"] * loaded.experiment.total_steps)
    if output is not None:
        write_json(output, contents)
    if as_json:
        print(json.dumps(contents, indent=2))
    else:
        print("\n".join(page.lines(contents)))
        if output is not None:
            print(f"\nwritten to {shown(output)}")
    return 1 if contents["memory"]["verdict"] == memory.DOES_NOT_FIT else 0


def simulate_devices(
    experiment: str,
    overrides: Sequence[str],
    gin_files: Sequence[str],
    mesh: str | None,
    device: str | None,
    devices: int | None,
) -> tuple[list[str], list[str], Device | None]:
    """Simulate the planned devices on this CPU. Returns overrides and gin files with the mesh, and the device;
    None for this machine's own. Arguments and errors are those of `plan`.
    """
    overrides, gin_files = mesh_overrides(mesh, overrides, gin_files)
    loaded, _ = config.examine(experiment, overrides, gin_files)  # `make check` reports its mistakes
    if loaded is not None:
        _simulate(device_count(loaded.experiment.mesh, devices))
    return overrides, gin_files, device_table.find_device(device)


def _simulate(devices: int) -> None:
    """Make JAX use this number of simulated devices on this CPU."""
    backend.clear_backends()  # a module of the experiment may have made arrays
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)


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
        "collectives": collectives(compiled_program, mesh),
        "unknown_loops": compiled_program.unknown_loops,
    }


def make_plan(facts: Mapping[str, Any], device: Device) -> dict[str, Any]:
    """The plan of a step on a device. facts: from `step_facts`. All sizes are bytes, all times seconds."""
    dtype, peak = facts["dtype"], device.peak[facts["dtype"]]
    # the network joins slices
    domain = min(device.domain, facts["devices"] // facts["mesh"].get("slice", 1))
    time = roofline.step_time(facts["operations"], facts["collectives"], device, dtype, domain)
    rows_per_second = facts["rows"] / time.step
    usable = device.memory * USABLE_MEMORY
    verdict = memory.fits(facts["memory"]["total"], usable)
    step = ("mesh", "devices", "dtype", "parameters", "rows", "lengths", "microbatches", "unknown_loops")
    return {
        "step": {name: facts[name] for name in step},
        "device": {**vars(device), "peak": peak, "domain": domain, "sources": list(device.sources)},
        "memory": {**facts["memory"], "usable": usable, "verdict": verdict},
        "collectives": _collective_rows(facts["collectives"], device, domain),
        "flops": {"model": facts["model_flops"], **facts["flops"]},
        "bytes": facts["bytes"],
        "reached": dict(REACHED),
        "time": {
            **{name: getattr(time, name) for name in ("compute", "memory", "waiting", "beside", "late", "step")},
            "bound": verdict if verdict == memory.DOES_NOT_FIT else time.bound,
            "rows_per_second": rows_per_second,
            "tokens_per_second": rows_per_second * sum(facts["lengths"].values()),
            "mfu": facts["model_flops"] / time.step / facts["devices"] / peak,
        },
        "notes": list(_notes(device, time, verdict)),
    }


def _collective_rows(counts: Mapping[Collective, int], device: Device, domain: int) -> list[dict[str, Any]]:
    """The collectives of a step, added up by kind and axes, sorted by their bytes."""
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[Collective, int]]] = defaultdict(list)
    for one, times in counts.items():
        groups[one.kind, one.axes].append((one, times))
    rows = []
    for (kind, axes), group in groups.items():
        sent = [(*roofline.sent_bytes(one, domain), times) for one, times in group]
        rows.append(
            {
                "kind": kind,
                "axes": list(axes),
                "group": group[0][0].group,
                "times": sum(times for _, times in group),
                "bytes": sum(one.bytes * times for one, times in group),
                "sent_near": sum(near * times for near, _, times in sent),
                "sent_far": sum(far * times for _, far, times in sent),
                "seconds": sum(roofline.seconds_of(one, device, domain) * times for one, times in group),
            }
        )
    return sorted(rows, key=lambda row: -row["bytes"])


def _notes(device: Device, time: roofline.StepTime, verdict: str) -> Iterator[str]:
    if verdict == memory.DOES_NOT_FIT:
        yield (
            "lower BATCH_SIZE, raise NUM_MICROBATCHES, or split the model over more devices; the time is that of a "
            "device that had the memory"
        )
    if time.step < _SHORT and device.name != device_table.THIS_CPU:
        yield "steps this short are bound by starting operations, which is not counted: they take longer"
