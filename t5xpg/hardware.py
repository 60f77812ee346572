"""What a run computes on, and how fast that could be at most."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

# Dense matrix products, in 10^12 operations a second of one jax device, as published by the makers (without sparsity).
# float32 is what jax multiplies float32 arrays with by default: TF32 on NVIDIA's Ampere and later, bfloat16 on TPUs.
# A device kind matches the first entry all of whose words it has.
PEAK_TERAFLOPS: tuple[tuple[str, dict[str, float]], ...] = (
    ("B200", {"bfloat16": 2250.0, "float16": 2250.0, "float32": 1125.0}),
    ("GH200", {"bfloat16": 989.4, "float16": 989.4, "float32": 494.7}),
    ("H200", {"bfloat16": 989.4, "float16": 989.4, "float32": 494.7}),
    ("H100 PCIe", {"bfloat16": 756.0, "float16": 756.0, "float32": 378.0}),
    ("H100 NVL", {"bfloat16": 835.5, "float16": 835.5, "float32": 417.5}),
    ("H100", {"bfloat16": 989.4, "float16": 989.4, "float32": 494.7}),
    ("A100", {"bfloat16": 312.0, "float16": 312.0, "float32": 156.0}),
    ("A10G", {"bfloat16": 70.0, "float16": 70.0, "float32": 35.0}),
    ("A10", {"bfloat16": 125.0, "float16": 125.0, "float32": 62.5}),
    ("L40S", {"bfloat16": 362.0, "float16": 362.0, "float32": 183.0}),
    ("L40", {"bfloat16": 181.0, "float16": 181.0, "float32": 90.5}),
    ("L4", {"bfloat16": 121.0, "float16": 121.0, "float32": 60.0}),
    ("T4", {"float16": 65.0, "float32": 8.1}),
    ("TPU v6 lite", {"bfloat16": 918.0, "float32": 918.0}),
    ("TPU v5 lite", {"bfloat16": 197.0, "float32": 197.0}),
    ("TPU v5p", {"bfloat16": 459.0, "float32": 459.0}),
    ("TPU v5", {"bfloat16": 459.0, "float32": 459.0}),
    ("TPU v4", {"bfloat16": 275.0, "float32": 275.0}),
    ("TPU v3", {"bfloat16": 61.5, "float32": 61.5}),
)


def describe(devices: list[jax.Device] | None = None) -> dict[str, Any]:
    """{"platform", "kind", "count", "cores", "memory_bytes"} of the devices (all of the default backend where None).

    cores: of a CPU. memory_bytes: of one device; of the machine for CPUs; None where unknown.
    """
    devices = jax.devices() if devices is None else devices
    first = devices[0]
    is_cpu = first.platform == "cpu"
    return {
        "platform": first.platform,
        "kind": cpu_name() if is_cpu else first.device_kind,
        "count": len(devices),
        "cores": os.cpu_count() if is_cpu else None,
        "memory_bytes": _machine_memory() if is_cpu else _device_memory(first),
    }


def peak_flops(device: jax.Device, dtype: str) -> float | None:
    """Floating point operations a second of matrix products in `dtype`; None where nothing is published (CPUs)."""
    if device.platform == "cpu":
        return None
    words = set(re.split(r"[^a-z0-9]+", device.device_kind.lower()))
    for name, table in PEAK_TERAFLOPS:
        if words.issuperset(name.lower().split()):
            tera = table.get(dtype)
            return None if tera is None else tera * 1e12
    return None


def measured_peak_flops(dtype: str, *, size: int = 1024, seconds: float = 0.3) -> float:
    """Floating point operations a second of a square matrix product on the default device: the best of several.

    A stand-in for the peak of a CPU, whose makers publish none; too low where other programs are running.
    """
    matrix = jnp.ones((size, size), jnp.dtype(dtype))
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(matrix, matrix))
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        jax.block_until_ready(product(matrix, matrix))
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return 2.0 * size**3 / best


def peak_flops_of_mesh(mesh: Mesh, dtype: str) -> float | None:
    """The peak of all devices of a mesh together; that of a CPU is measured. None where nothing is known."""
    first = mesh.devices.flat[0]
    if first.platform == "cpu":
        return measured_peak_flops(dtype)
    peak = peak_flops(first, dtype)
    return None if peak is None else peak * mesh.devices.size


def cpu_name() -> str:
    """The CPU's model name, or what the platform calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()


def _machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _device_memory(device: jax.Device) -> int | None:
    try:
        statistics = device.memory_stats() or {}
    except (RuntimeError, NotImplementedError):  # plugins without statistics
        return None
    return statistics.get("bytes_limit")
