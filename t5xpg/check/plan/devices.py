"""The published figures of accelerators, and the shares of them that a training step can be expected to reach.

Peaks of matrix products are those of `hardware.PEAK_TERAFLOPS`. All rates are per JAX device: on TPUs a chip, but on
the v3 one of a chip's two cores.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from t5xpg.base import environment
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.markdown import aligned
from t5xpg.distributed import hardware

# The share of the published rates that a step is expected to reach.
#
# Matrix products: the fastest of all shapes reach 86% of the peak on an A100 and 80% on an H100 and an H200 (measured
# by mamf-finder.py, https://github.com/stas00/ml-engineering, compute/accelerator); a model's own shapes are not those.
# Memory and links: the usual share of long copies and of long rings. All three were chosen before anything was
# compared, and are the same for all devices; docs/scaling.md says how far they are off.
REACHED = {"compute": 0.75, "memory": 0.8, "links": 0.8}
# The usable share of the memory; the rest is used by the runtime, or is lost between arrays.
USABLE_MEMORY = 0.92

GB, GBIT = 1e9, 1e9 / 8
_COPIED, _TIMES = 1 << 27, 5  # bytes, more than the caches hold, and the number of copies


@dataclass(frozen=True)
class Device:
    """One accelerator.

    peak: matrix products a second, by the dtype that they are computed in. memory: bytes. bandwidth: of the memory,
    bytes a second. links: bytes a second that it sends to others of its domain in one collective. domain: how many
    devices these links join (a machine's GPUs, a pod's TPUs). network: bytes a second that each sends out of it.
    """

    name: str
    peak: dict[str, float]
    memory: float
    bandwidth: float
    links: float
    domain: int
    network: float
    sources: tuple[str, ...]


def _peak(name: str) -> dict[str, float]:
    return {dtype: tera * 1e12 for dtype, tera in dict(hardware.PEAK_TERAFLOPS)[name].items()}


_NVIDIA = "https://www.nvidia.com/en-us/data-center"
_TPU = "https://cloud.google.com/tpu/docs"
_BOOK = "https://jax-ml.github.io/scaling-book/tpus (network: 25 GB/s a host)"
_DGX_A100 = f"{_NVIDIA}/dgx-a100 (8 GPUs, 8 x 200 Gb/s)"
_DGX_H100 = f"{_NVIDIA}/dgx-h100 (8 GPUs, 8 x 400 Gb/s)"

# NVLink is published as the sum of both directions; a collective sends one of them. A collective along one axis of a
# mesh uses the links of one axis of a TPU's torus: a half of those of a chip in a 2D torus, a third in a 3D torus.
DEVICES: tuple[Device, ...] = (
    Device(
        "a100-40gb", _peak("A100"), 40 * GB, 1555 * GB, 600 * GB / 2, 8, 200 * GBIT, (f"{_NVIDIA}/a100", _DGX_A100)
    ),
    Device(
        "a100-80gb", _peak("A100"), 80 * GB, 2039 * GB, 600 * GB / 2, 8, 200 * GBIT, (f"{_NVIDIA}/a100", _DGX_A100)
    ),
    Device("h100", _peak("H100"), 80 * GB, 3350 * GB, 900 * GB / 2, 8, 400 * GBIT, (f"{_NVIDIA}/h100", _DGX_H100)),
    Device("h200", _peak("H200"), 141 * GB, 4800 * GB, 900 * GB / 2, 8, 400 * GBIT, (f"{_NVIDIA}/h200", _DGX_H100)),
    Device(
        "l4", _peak("L4"), 24 * GB, 300 * GB, 64 * GB / 2, 8, 100 * GBIT / 8,
        (f"{_NVIDIA}/l4 (PCIe)", "https://cloud.google.com/compute/docs/accelerator-optimized-machines (g2)"),
    ),
    Device(
        "tpu-v3", _peak("TPU v3"), 16 * GB, 450 * GB, 4 * 656 * GBIT / 2 / 2, 2048, 25 * GB / 8,
        (f"{_TPU}/v3", "https://doi.org/10.1145/3360307 (links: 656 Gb/s)", _BOOK),
    ),
    Device("tpu-v4", _peak("TPU v4"), 32 * GB, 1200 * GB, 6 * 45 * GB / 3, 4096, 25 * GB / 4, (f"{_TPU}/v4", _BOOK)),
    Device("tpu-v5e", _peak("TPU v5 lite"), 16 * GB, 819 * GB, 200 * GB / 2, 256, 6400 * GBIT / 256, (f"{_TPU}/v5e",)),
    Device("tpu-v5p", _peak("TPU v5p"), 95 * GB, 2765 * GB, 600 * GB / 3, 8960, 50 * GBIT, (f"{_TPU}/v5p",)),
    Device("tpu-v6e", _peak("TPU v6 lite"), 32 * GB, 1638 * GB, 400 * GB / 2, 256, 25 * GB / 8, (f"{_TPU}/v6e", _BOOK)),
)  # fmt: skip
DEFAULT = "a100-80gb"
THIS_CPU = "cpu"  # this machine's processor, measured


def find_device(name: str | None) -> Device | None:
    """The device of that name, also in spellings such as `A100 80GB`; None for "cpu". Raises UserError with the nearest
    names."""
    name = name or DEFAULT
    if name.lower() == THIS_CPU:
        return None
    known = {device.name: device for device in DEVICES}
    normalized = "-".join(name.lower().replace("_", " ").replace("-", " ").split())
    without_memory = [normalized.removesuffix(f"-{size}gb") for size in (80, 141)]
    for candidate in (normalized, f"{normalized}gb", f"tpu-{normalized}", *without_memory):
        if candidate in known:
            return known[candidate]
    raise UserError(
        f"DEVICE={name} is not in the table of devices.{nearest(normalized, [*known, THIS_CPU])} "
        f"{THIS_CPU} is this machine's processor, measured."
    )


def measured_cpu(dtype: str, num_devices: int = 1) -> Device:
    """This machine's processor, with the measured speeds of matrix products in `dtype` and of memory. Takes a second.

    num_devices: the number of simulated devices that share it; each has its part.
    """
    memory = environment.host()["memory_bytes"]
    if memory is None:
        raise UserError(f"DEVICE={THIS_CPU}: this system does not say how much memory it has; name another device.")
    cores = environment.usable_cores()
    with ThreadPoolExecutor(cores) as pool:  # together, by the clock of each thread
        bandwidth = sum(pool.map(_copy, range(cores))) / num_devices
    peak = {dtype: hardware.measured_peak_flops(dtype) / num_devices}
    return Device(THIS_CPU, peak, memory / num_devices, bandwidth, bandwidth, num_devices, bandwidth, ("measured",))


def _copy(_: int) -> float:
    """The bytes a second that a core reads and writes in the fastest of several copies."""
    source, target = np.ones(_COPIED, np.uint8), np.zeros(_COPIED, np.uint8)
    best = float("inf")
    for _ in range(_TIMES):
        began = time.thread_time()
        np.copyto(target, source)
        best = min(best, time.thread_time() - began)
    return 2 * _COPIED / best


def lines() -> list[str]:
    """The table for people: 10^12 operations a second, GB, GB a second."""
    header = ("device", "bfloat16", "float32", "memory", "bandwidth", "links", "group", "network")
    rows = []
    for one in DEVICES:
        peaks = [one.peak[dtype] / 1e12 for dtype in ("bfloat16", "float32")]
        rates = (one.memory / GB, one.bandwidth / GB, one.links / GB, one.domain, one.network / GB)
        rows.append([one.name, *(f"{value:,.4g}" for value in (*peaks, *rates))])
    return aligned(header, rows, 1)
