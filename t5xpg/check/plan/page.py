"""A plan as a page of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t5xpg.base.page import aligned
from t5xpg.check.plan.devices import HERE

_MB = 1e6


def lines(plan: Mapping[str, Any]) -> list[str]:
    """The text of what `plan.make` returns."""
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
