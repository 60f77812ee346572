"""The health check of the image: says which device it finds, and fails where the image's kind of device is not there.

It asks the driver: JAX would take memory of a device that a run is using. The standard library is all that it needs.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

NAME_BYTES = 256


class NotFoundError(Exception):
    """No device, and why."""


def nvidia_devices() -> list[str]:
    """The GPUs that CUDA's driver gives this container, by name and memory. Raises NotFoundError."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise NotFoundError(
            "no NVIDIA driver in this container: start it with --gpus all (NVIDIA's container toolkit)"
        ) from None
    if status := driver.cuInit(0):
        raise NotFoundError(f"the NVIDIA driver does not start (cuInit returned {status})")
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        raise NotFoundError("the NVIDIA driver has no device")
    devices = []
    for number in range(count.value):
        device, name, size = ctypes.c_int(), ctypes.create_string_buffer(NAME_BYTES), ctypes.c_size_t()
        driver.cuDeviceGet(ctypes.byref(device), number)
        driver.cuDeviceGetName(name, NAME_BYTES, device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        devices.append(f"{name.value.decode()}, {size.value / 2**30:.0f} GiB")
    return devices


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor, by name and the cores that may be used."""
    names = [
        line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
    ]
    return f"{names[0] if names else 'processor'}, {len(os.sched_getaffinity(0))} cores"


def main() -> int:
    """Print the devices; returns the exit code, 1 where there is none."""
    machine = os.environ.get("T5XPG_MACHINE", "cpu")
    if machine != "cuda":
        print(f"cpu: {processor()}")
        return 0
    try:
        print("\n".join(f"cuda: {device}" for device in nvidia_devices()))
    except NotFoundError as error:
        print(f"cuda: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
