"""One size of `benchmarks.growth`: its training step is compiled and timed, and its memory watched."""

import argparse
import contextlib
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.jobs import Job
from t5xpg.base import malloc
from t5xpg.base.xla_flags import set_xla_flags

SECONDS, FEWEST, MOST = 1.5, 2, 15  # of timed steps: as many as fit


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sizes", help="fields of benchmarks.jobs.Job as JSON")
    parser.add_argument("settings", help="of Windows, as JSON")
    given = parser.parse_args()
    set_xla_flags()  # before jax is imported
    print(json.dumps(measure(Job(**json.loads(given.sizes)), json.loads(given.settings))))


def measure(job: Job, windows: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a step, the most bytes of the process during steps, operations of its matrix products, tokens."""
    from benchmarks.own_step import OwnStep, experiment
    from t5xpg.models.parts import Windows

    step = OwnStep(experiment(job, windows=Windows(**windows)))
    batch = step.on_devices(job.batches()[0])
    forget_peak()

    seconds: list[float] = []
    while len(seconds) <= FEWEST or (sum(seconds) < SECONDS and len(seconds) < MOST):
        began = time.perf_counter()
        step(batch)
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds[1:])  # the first one touches its memory for the first time
    return {"seconds": median, "memory": peak(), "flops": job.flops(), "tokens": job.tokens}


def forget_peak() -> None:
    """Give back the memory that compiling has left, and reset the kernel's record of the largest memory."""
    gc.collect()
    malloc.release_unused()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """The most bytes that this process has held since `forget_peak`, or since its start if the kernel does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    main()
