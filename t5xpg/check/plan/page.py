"""A plan as a page of text."""

from collections.abc import Mapping
from typing import Any

from t5xpg.base.markdown import aligned
from t5xpg.check.plan.devices import THIS_CPU

_MB = 1e6


def lines(plan: Mapping[str, Any]) -> list[str]:
    """The lines of the page of a plan (`make_plan`)."""
    step, device = plan["step"], plan["device"]
    mesh = " x ".join(f"{axis} {size}" for axis, size in step["mesh"].items())
    parts = f" in {step['microbatches']} parts" if step["microbatches"] > 1 else ""
    lengths = "/".join(str(length) for length in step["lengths"].values())
    return [
        f"{plan['experiment']} on {step['devices']} x {device['name']}, mesh {mesh}",
        f"parameters   {step['parameters']:,}",
        f"batch        {step['rows']:,} x {lengths} tokens{parts}, computed in {step['dtype']}",
        "",
        *_memory(plan["memory"], device),
        "",
        *_collectives(plan["collectives"], step["unknown_loops"]),
        "",
        *_operations(plan),
        "",
        *_time(plan),
    ]


def _table(header: str, values: Mapping[str, str]) -> list[str]:
    return aligned([header, ""], [[f"  {name}", value] for name, value in values.items()], 1)


def _memory(memory: Mapping[str, Any], device: Mapping[str, Any]) -> list[str]:
    kinds = {kind: kind for kind in ("parameters", "optimizer", "gradients", "activations", "batch")}
    sizes = {name: f"{memory[kind] / _MB:,.0f}" for name, kind in {**kinds, "in all": "total"}.items()}
    verdict = f"{memory['verdict']} in {device['memory'] / 1e9:g} GB, of which {memory['usable'] / 1e9:.1f} can be used"
    compiled = memory["compiled"]
    beside = f"; XLA's program for CPUs takes {compiled / _MB:,.0f} MB" if compiled is not None else ""
    return [*_table("MB on each device", sizes), f"  {verdict}{beside}"]


def _collectives(collectives: list[Mapping[str, Any]], unknown_loops: int) -> list[str]:
    if not collectives:
        return ["no collectives"]
    header = ["collectives of a step", "along", "devices", "times", "MB", "MB sent", "ms"]
    rows = [
        [
            f"  {one['kind']}",
            ", ".join(one["axes"]),
            f"{one['group']:,}",
            f"{one['times']:,}",
            f"{one['bytes'] / _MB:,.1f}",
            f"{(one['sent_near'] + one['sent_far']) / _MB:,.1f}",
            _ms(one["seconds"]),
        ]
        for one in collectives
    ]
    unknown = [f"  {unknown_loops} loops whose length the compiler does not know are counted once"]
    return aligned(header, rows, 2) + (unknown if unknown_loops else [])


def _operations(plan: Mapping[str, Any]) -> list[str]:
    flops = plan["flops"]
    counts = {
        "of the model, counted from its shapes": flops["model"] / plan["step"]["devices"],
        "of the compiled program's products": flops["products"],
        "of XLA's cost analysis, each loop once": flops["cost_analysis"],
    }
    shown = {name: f"{count / 1e9:,.1f}" for name, count in counts.items() if count is not None}
    traffic = f"memory traffic of a step  {plan['bytes'] / 1e9:,.1f} GB on each device"
    return [*_table("GFLOP of a step on each device", shown), traffic]


def _time(plan: Mapping[str, Any]) -> list[str]:
    time, device = plan["time"], plan["device"]
    parts = {
        "operations bound by compute": "compute",
        "operations bound by memory bandwidth": "memory",
        "collectives that are waited for": "waiting",
        "collectives beside the backward pass": "beside",
        "  what is left of them when it ends": "late",
    }
    shares = ", ".join(f"{share:.0%} of the {what}" for what, share in plan["reached"].items())
    source = "measured" if device["name"] == THIS_CPU else "published"
    peak, bandwidth = device["peak"] / 1e12, device["bandwidth"] / 1e9
    return [
        *_table("ms of a step", {name: _ms(time[part]) for name, part in parts.items()}),
        f"  reckoned with {shares} {source}:",
        f"  {peak:,.4g} TFLOP/s, {bandwidth:,.4g} GB/s, {device['links'] / 1e9:,.4g} GB/s to others of a group of "
        f"{device['domain']:,}, {device['network'] / 1e9:,.4g} GB/s beyond",
        "",
        f"step         {_ms(time['step'])} ms, {time['rows_per_second']:,.0f} rows a second, "
        f"{time['tokens_per_second']:,.0f} tokens a second",
        f"MFU          {time['mfu']:.0%} of the peak",
        f"bound by     {time['bound']}",
        f"run          {time['run']} for {plan['total_steps']:,} steps, without start, evaluations and checkpoints",
        *(f"note: {note}" for note in plan["notes"]),
    ]


def _ms(seconds: float) -> str:
    """Milliseconds, with three figures where they are few."""
    value = seconds * 1e3
    return f"{value:,.1f}" if value >= 10 or not value else f"{value:.3g}"
