"""`make plan`: what a step of training takes on devices that are not there.

The step is compiled for as many simulated devices as the mesh has, from shapes alone. The program says what each device
holds, computes and sends; a table of published figures says how long that takes.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t5xpg import config, memory
from t5xpg.files import write_json
from t5xpg.partitioning import MODEL
from t5xpg.paths import shown
from t5xpg.planning import device_table, expected, here, mesh_choice, page
from t5xpg.planning.collectives import Collective, merged
from t5xpg.planning.compiling import compile_step
from t5xpg.planning.device_table import REACHED, USABLE_MEMORY, Device
from t5xpg.planning.operations import Operation
from t5xpg.progress import duration

# Shorter steps than this are bound by starting operations, which is not counted.
_SHORT = 0.02


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
    """Print what a step of an experiment takes; returns 0 where it fits the devices, 1 where it does not.

    mesh: a fragment of gin/partitioning, or sizes such as data=8,model=4; None for the experiment's. device: a row of
    the table, or "cpu" for this machine's. devices: how many, where the mesh takes as many as there are. output: a file
    for the plan as JSON. Raises UserError for what cannot be built, and for names that nothing knows.
    """
    of_mesh, files = mesh_choice.overrides(mesh)
    overrides, gin_files = [*overrides, *of_mesh], [*gin_files, *files]
    loaded = config.load(experiment, overrides, gin_files)
    count = mesh_choice.device_count(loaded.experiment.mesh, devices)
    row = _device(device, loaded.experiment.model.config.dtype, count)
    plural = "" if count == 1 else "s"
    print(f"plan: compiling the step for {count} simulated device{plural} …", file=sys.stderr, flush=True)
    found = compile_step(experiment, overrides, gin_files, count)
    made = make(found, row)
    made |= {"experiment": loaded.name, "total_steps": loaded.experiment.total_steps}
    made["time"]["run"] = duration(made["time"]["step"] * loaded.experiment.total_steps)
    if output is not None:
        write_json(output, made)
    if as_json:
        print(json.dumps(made, indent=2))
    else:
        print("\n".join(page.lines(made)))
        if output is not None:
            print(f"\nwritten to {shown(output)}")
    return 1 if made["memory"]["verdict"] == expected.DOES_NOT_FIT else 0


def elsewhere(
    experiment: str,
    overrides: Sequence[str],
    gin_files: Sequence[str],
    mesh: str | None,
    device: str | None,
    devices: int | None,
) -> tuple[list[str], list[str], Device]:
    """Let this process's CPU pass for the devices of a plan: overrides and gin files with the mesh, and the device.

    Before JAX has looked for devices. Arguments and errors are those of `plan`.
    """
    of_mesh, files = mesh_choice.overrides(mesh)
    overrides, gin_files = [*overrides, *of_mesh], [*gin_files, *files]
    loaded, _ = config.examine(experiment, overrides, gin_files)  # what is wrong with it is for `make check` to say
    if loaded is not None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", mesh_choice.device_count(loaded.experiment.mesh, devices))
    return overrides, gin_files, device_table.find(device or device_table.DEFAULT)


def make(found: Mapping[str, Any], device: Device) -> dict[str, Any]:
    """The plan: what `compiling.describe` found, on a device. All sizes are bytes, all times seconds."""
    operations = Counter({Operation(flops, size): times for flops, size, times in found["operations"]})
    collectives: Counter[Collective] = Counter()
    for one in found["collectives"]:
        collectives[_collective(one)] += one["times"]
    mesh, dtype = found["mesh"], found["dtype"]
    slice_size = found["devices"] // mesh.get("slice", 1)
    time = expected.expect(operations, collectives, device, dtype, slice_size=slice_size, model_axes=[MODEL])
    domain = min(device.domain, slice_size)
    rows_per_second = found["rows"] / time.step
    needed = found["memory"]["total"]
    verdict = expected.fits(needed, device, memory.BAND)
    peak = device.peak[dtype]
    return {
        "step": {
            name: found[name]
            for name in ("mesh", "devices", "dtype", "parameters", "rows", "lengths", "microbatches", "unknown_loops")
        },
        "device": {
            "name": device.name, "peak": peak, "memory": device.memory, "bandwidth": device.bandwidth,
            "links": device.links, "domain": domain, "network": device.network, "sources": list(device.sources),
        },
        "memory": {**found["memory"], "usable": device.memory * USABLE_MEMORY, "verdict": verdict},
        "collectives": [
            _row(one, times, collectives, device, domain) for one, times in merged(collectives)
        ],
        "flops": {"model": found["model_flops"], **found["flops"]},
        "bytes": found["bytes"],
        "reached": dict(REACHED),
        "time": {
            "compute": time.compute, "memory": time.memory, "waiting": time.waiting, "beside": time.beside,
            "late": time.late, "step": time.step,
            "bound": verdict if verdict == expected.DOES_NOT_FIT else time.bound,
            "rows_per_second": rows_per_second,
            "tokens_per_second": rows_per_second * sum(found["lengths"].values()),
            "mfu": found["model_flops"] / time.step / found["devices"] / peak,
        },
        "notes": list(_notes(found, device, time, verdict)),
    }  # fmt: skip


def _device(name: str | None, dtype: str, count: int) -> Device:
    if name is not None and name.lower() == device_table.HERE:
        return here.measured(dtype, count)
    return device_table.find(name or device_table.DEFAULT)


def _collective(one: Mapping[str, Any]) -> Collective:
    return Collective(one["kind"], one["bytes"], tuple(one["axes"]), tuple(one["devices"]))


def _row(
    alike: Collective,
    times: int,
    collectives: Mapping[Collective, int],
    device: Device,
    domain: int,
) -> dict[str, Any]:
    """Of all collectives of one kind along the same axes."""
    near, far, seconds = 0.0, 0.0, 0.0
    for one, count in collectives.items():
        if (one.kind, one.axes) == (alike.kind, alike.axes):
            sent = expected.sent_bytes(one, domain)
            near, far = near + sent[0] * count, far + sent[1] * count
            seconds += expected.seconds_of(one, device, domain) * count
    return {
        "kind": alike.kind, "axes": list(alike.axes), "group": alike.group, "times": times, "bytes": alike.bytes,
        "sent_near": near, "sent_far": far, "seconds": seconds,
    }  # fmt: skip


def _notes(found: Mapping[str, Any], device: Device, time: expected.Expected, verdict: str) -> list[str]:
    notes = []
    if verdict == expected.DOES_NOT_FIT:
        notes.append(
            "lower BATCH_SIZE, raise NUM_MICROBATCHES, or split the model over more devices; the time is that of a "
            "device that had the memory"
        )
    if time.step < _SHORT and device.name != device_table.HERE:
        notes.append("steps this short are bound by starting operations, which is not counted: they take longer")
    return notes
