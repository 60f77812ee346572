"""What the measurements were made on: the machine, its peak of matrix products, versions, the source, who else ran.

`python -m benchmarks.machine` measures the peak and prints it; that takes a process of its own, as jax takes memory.
"""

import json
import os
import time
from typing import Any

from benchmarks.harness import NotMeasuredError, in_process
from t5xpg.__main__ import set_cpu_flags
from t5xpg.base import environment

DTYPES = ("float32", "bfloat16")
SIZE, SECONDS = 2048, 2.0


def describe() -> dict[str, Any]:
    """Machine, versions and commit; the peak of both precisions in operations a second; the load before it all."""
    load = os.getloadavg()[0]
    try:
        peak = in_process(["-m", "benchmarks.machine"])
    except NotMeasuredError as reason:
        peak = {"missing": str(reason)}
    return {
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": environment.host(),
        "load_before": load,
        "peak_flops": peak,
        "tunables": os.environ.get("GLIBC_TUNABLES", ""),
        "versions": environment.versions(),
        "git": environment.git_state(),
    }


def main() -> None:
    set_cpu_flags()
    from t5xpg.distributed.hardware import measured_peak_flops

    print(json.dumps({dtype: measured_peak_flops(dtype, size=SIZE, seconds=SECONDS) for dtype in DTYPES}))


if __name__ == "__main__":
    main()
