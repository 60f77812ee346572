"""The limits of the hardware: peak operations a second, and bytes of memory."""

import re
import time

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from t5xpg.base import environment

# Dense matrix products, in 10^12 operations a second of one jax device, as published by the makers (without sparsity).
# float32 is what jax multiplies float32 arrays with by default: TF32 on NVIDIA's Ampere and later, bfloat16 on TPUs.
# A device takes the first entry whose words are all in its kind.
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
    """Floating point operations a second of all devices of a mesh together; None where nothing is published."""
    published = peak_flops(mesh.devices.flat[0], dtype)
    return None if published is None else published * mesh.devices.size


def share_of_peak(flops_per_second: float, peak: float | None) -> float | None:
    """The share of the peak that is reached; None where no peak is known."""
    return flops_per_second / peak if peak else None


def device_memory(device: jax.Device) -> int | None:
    """The bytes that arrays can take on a device: those of its allocator, or on a CPU those of this process.

    Devices that are simulated on a CPU share that memory. None where it is not known.
    """
    if device.platform == "cpu":
        return environment.memory_limit()
    try:
        limit = (device.memory_stats() or {}).get("bytes_limit")
    except (RuntimeError, NotImplementedError):  # a backend that keeps no record of it
        return None
    return None if limit is None else int(limit)
