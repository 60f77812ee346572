"""This machine's processor as a device of a plan, measured."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from t5xpg import environment, hardware
from t5xpg.errors import UserError
from t5xpg.planning.device_table import HERE, Device

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
