"""What the measurements were made on: the machine, its kind, its peak of matrix products, versions, the source, who
else ran."""

import os
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.harness import NotMeasuredError, report_of
from t5xpg.base import environment

# Instructions of a processor that decide how fast products are: their flags in /proc/cpuinfo, and their usual names.
INSTRUCTIONS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "bf16", "amx_tile": "AMX"}


def describe() -> dict[str, Any]:
    """Machine, versions and commit; the peak of both precisions in operations a second; the load before it all."""
    load = os.getloadavg()[0]
    try:
        peak = report_of(["-m", "benchmarks.gpu_device"])["measured_flops"]
    except NotMeasuredError as reason:
        peak = {"missing": str(reason)}
    host = environment.host()
    return {
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "kind": f"{host['cpu'] or 'unknown processor'}{instructions(environment.cpu_facts())}, {host['cores']} cores",
        "machine": host,
        "load_before": load,
        "peak_flops": peak,
        "tunables": os.environ.get("GLIBC_TUNABLES", ""),
        "versions": environment.versions(),
        "git": environment.git_state(),
    }


def instructions(facts: Mapping[str, str]) -> str:
    """ " (AVX2, AVX-512, bf16)": the ones of INSTRUCTIONS that a processor has."""
    flags = facts.get("flags", "").split()
    known = ", ".join(name for flag, name in INSTRUCTIONS.items() if flag in flags)
    return f" ({known})" if known else ""
