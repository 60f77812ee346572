"""`make plan`: what a step of training takes on devices that are not there.

The step is compiled for as many simulated devices as the mesh has, from shapes alone. The program says what each device
holds, computes and sends; a table of published figures says how long that takes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5xpg.base import environment, paths
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import write_json
from t5xpg.base.page import aligned
from t5xpg.base.paths import shown
from t5xpg.base.progress import duration
from t5xpg.check.plan import devices as device_table
from t5xpg.check.plan import expected, memory
from t5xpg.check.plan.compiling import compile_step
from t5xpg.check.plan.devices import HERE, REACHED, USABLE_MEMORY, Device
from t5xpg.check.plan.hlo import Collective, Operation, merged
from t5xpg.distributed import MODEL, MeshConfig, hardware
from t5xpg.experiment import config

_COPIED, _TIMES = 1 << 27, 5  # bytes that are too many for the caches, and how often


def measured(dtype: str, sharing: int = 1) -> Device:
    """The processor with the speed of its matrix products in `dtype` and of its memory. Takes a second.

    sharing: how many devices are simulated on it; each has its part.
    """
    memory = environment.host()["memory_bytes"]
    if memory is None:
        raise UserError(f"DEVICE={HERE}: this system does not say how much memory it has; name another device.")
    jax.config.update("jax_platforms", "cpu")  # where there is an accelerator, it is not asked
    bandwidth = _bandwidth() / sharing
    peak = {dtype: hardware.best_peak_flops(dtype, again=False) / sharing}
    return Device(HERE, peak, memory / sharing, bandwidth, bandwidth, sharing, bandwidth, ("measured",))


def _bandwidth() -> float:
    """Bytes a second that all cores together read and write while they copy.

    Seconds are those of each thread, so that other programs make it little lower than it is.
    """
    cores = environment.usable_cores()
    with ThreadPoolExecutor(cores) as pool:
        return sum(pool.map(_copy, range(cores)))


def _copy(_: int) -> float:
    """Bytes a second of the fastest of several copies."""
    source, target = np.ones(_COPIED, np.uint8), np.zeros(_COPIED, np.uint8)
    best = float("inf")
    for _ in range(_TIMES):
        began = time.thread_time()
        np.copyto(target, source)
        best = min(best, time.thread_time() - began)
    return 2 * _COPIED / best


# axes by the fields of MeshConfig: all that are whole numbers, and none that may be missing
AXES = tuple(field.name for field in dataclasses.fields(MeshConfig) if field.type == "int")
_SIZE = re.compile(r"(\w+)=(\d{1,6})")


def mesh_overrides(mesh: str | None) -> tuple[list[str], list[str]]:
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
    bindings = [f"distributed.MeshConfig.{axis}={size}" for axis, size in sizes.items()]
    return [*bindings, "distributed.MeshConfig.devices=None"], []


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


_MB = 1e6


def lines(plan: Mapping[str, Any]) -> list[str]:
    """The text of what `planning.make` returns."""
    step, device, memory = plan["step"], plan["device"], plan["memory"]
    mesh = " x ".join(f"{axis} {size}" for axis, size in step["mesh"].items())
    parts = f" in {step['microbatches']} parts" if step["microbatches"] > 1 else ""
    lengths = "/".join(str(length) for length in step["lengths"].values())
    return [
        f"{plan['experiment']} on {step['devices']} x {device['name']}, mesh {mesh}",
        f"parameters   {step['parameters']:,}",
        f"batch        {step['rows']:,} x {lengths} tokens{parts}, computed in {step['dtype']}",
        "",
        *_memory(memory, device),
        "",
        *_collectives(plan["collectives"], step["unknown_loops"]),
        "",
        *_operations(plan),
        "",
        *_time(plan),
    ]


def _memory(memory: Mapping[str, Any], device: Mapping[str, Any]) -> list[str]:
    kinds = ("parameters", "optimizer", "gradients", "activations", "batch")
    rows = [[f"  {kind}", f"{memory[kind] / _MB:,.0f}"] for kind in kinds]
    rows.append(["  in all", f"{memory['total'] / _MB:,.0f}"])
    found = aligned(["MB on each device", ""], rows, 1)
    told = f"{memory['verdict']} in {device['memory'] / 1e9:g} GB, of which {memory['usable'] / 1e9:.1f} can be used"
    compiled = memory["compiled"]
    beside = f"; XLA's program for CPUs takes {compiled / _MB:,.0f} MB" if compiled is not None else ""
    return [*found, f"  {told}{beside}"]


def _collectives(rows: list[Mapping[str, Any]], unknown_loops: int) -> list[str]:
    if not rows:
        return ["no collectives"]
    header = ["collectives of a step", "along", "devices", "times", "MB", "MB sent", "ms"]
    found = aligned(
        header,
        [
            [
                f"  {row['kind']}",
                ", ".join(row["axes"]),
                f"{row['group']:,}",
                f"{row['times']:,}",
                f"{row['bytes'] / _MB:,.1f}",
                f"{(row['sent_near'] + row['sent_far']) / _MB:,.1f}",
                _ms(row["seconds"]),
            ]
            for row in rows
        ],
        2,
    )
    if unknown_loops:
        found.append(f"  {unknown_loops} loops whose length the compiler does not know are counted once")
    return found


def _operations(plan: Mapping[str, Any]) -> list[str]:
    step, flops = plan["step"], plan["flops"]
    analysis = flops["cost_analysis"]
    rows = [
        ["  of the model, counted from its shapes", f"{flops['model'] / step['devices'] / 1e9:,.1f}"],
        ["  of the compiled program's products", f"{flops['products'] / 1e9:,.1f}"],
    ]
    if analysis is not None:
        rows.append(["  of XLA's cost analysis, each loop once", f"{analysis / 1e9:,.1f}"])
    text = aligned(["GFLOP of a step on each device", ""], rows, 1)
    return [*text, f"memory traffic of a step  {plan['bytes'] / 1e9:,.1f} GB on each device"]


def _time(plan: Mapping[str, Any]) -> list[str]:
    time, device, reached = plan["time"], plan["device"], plan["reached"]
    rows = [
        ["  operations bound by compute", _ms(time["compute"])],
        ["  operations bound by memory bandwidth", _ms(time["memory"])],
        ["  collectives that are waited for", _ms(time["waiting"])],
        ["  collectives beside the backward pass", _ms(time["beside"])],
        ["    what is left of them when it ends", _ms(time["late"])],
    ]
    shares = ", ".join(f"{share:.0%} of the {what}" for what, share in reached.items())
    told = "measured" if device["name"] == HERE else "published"
    peak, bandwidth = device["peak"] / 1e12, device["bandwidth"] / 1e9
    text = [
        *aligned(["ms of a step", ""], rows, 1),
        f"  reckoned with {shares} {told}:",
        f"  {peak:,.4g} TFLOP/s, {bandwidth:,.4g} GB/s, {device['links'] / 1e9:,.4g} GB/s to others of a group of "
        f"{device['domain']:,}, {device['network'] / 1e9:,.4g} GB/s beyond",
        "",
        f"step         {_ms(time['step'])} ms, {time['rows_per_second']:,.0f} rows a second, "
        f"{time['tokens_per_second']:,.0f} tokens a second",
        f"MFU          {time['mfu']:.0%} of the peak",
        f"bound by     {time['bound']}",
        f"run          {time['run']} for {plan['total_steps']:,} steps, without start, evaluations and checkpoints",
    ]
    return text + [f"note: {note}" for note in plan["notes"]]


def _ms(seconds: float) -> str:
    """Milliseconds, with three figures where they are few."""
    value = seconds * 1e3
    return f"{value:,.1f}" if value >= 10 or not value else f"{value:.3g}"


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
    of_mesh, files = mesh_overrides(mesh)
    overrides, gin_files = [*overrides, *of_mesh], [*gin_files, *files]
    loaded = config.load(experiment, overrides, gin_files)
    count = device_count(loaded.experiment.mesh, devices)
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
        print("\n".join(lines(made)))
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
    of_mesh, files = mesh_overrides(mesh)
    overrides, gin_files = [*overrides, *of_mesh], [*gin_files, *files]
    loaded, _ = config.examine(experiment, overrides, gin_files)  # what is wrong with it is for `make check` to say
    if loaded is not None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", device_count(loaded.experiment.mesh, devices))
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
        return measured(dtype, count)
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
