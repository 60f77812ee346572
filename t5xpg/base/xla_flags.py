"""Flags for XLA's compilers for CPUs and GPUs. They must be set before JAX is imported.

The flags are for the versions of jaxlib that are named here: an unknown flag ends the process.
"""

import importlib.util
import os

_ONEDNN, _YNNPACK = "xla_cpu_experimental_onednn_custom_call", "xla_cpu_experimental_ynn_fusion_type"
_WIDE_VECTORS = "--xla_cpu_prefer_vector_width=512"
# Sums stay with YNNPACK, XLA's default library; by default it also takes most products, and oneDNN few.
_SUMS = "LIBRARY_FUSION_TYPE_REDUCE"
# The same as options of one program, and those of a program whose products oneDNN would compute wrongly.
ONEDNN_OPTIONS: dict[str, dict[str, str | bool]] = {
    "with": {_ONEDNN: True, _YNNPACK: _SUMS},
    "without": {
        _ONEDNN: False,
        _YNNPACK: f"{_SUMS},LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
    },
}
# A processor takes the first row whose instruction it has (its flag in /proc/cpuinfo), and no flags without one.
# `make bench ROWS=flags` measures on a machine what each flag gains: add a row for another kind.
CPU_FLAGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("avx512_bf16", (f"--{_ONEDNN}=true", f"--{_YNNPACK}={_SUMS}", _WIDE_VECTORS)),
)
CPU_JAXLIBS = ("0.12.0", "0.12.0.1")
# For GPUs: products by cuBLAS and fusions as XLA writes them, in place of compiling and timing Triton kernels for each.
# What they gain in time to compile and cost in speed has not been measured.
_GPU_OPTIONS = ("xla_gpu_enable_triton_gemm", "xla_gpu_experimental_enable_fusion_autotuner")
_GPU_JAXLIBS = ("0.10.2", "0.11.2", *CPU_JAXLIBS)
_CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def set_xla_flags() -> None:
    """Add the flags of this machine to XLA_FLAGS; those for GPUs only if JAX has its CUDA plugin.

    Flags that the user has set stay. A processor's row goes together: it is left out if one of its flags is set.
    """
    if flags := _flags():
        os.environ["XLA_FLAGS"] = flags


def _flags() -> str:
    """XLA_FLAGS with those that `set_xla_flags` adds."""
    from importlib import metadata  # not needed to start

    flags, jaxlib = os.environ.get("XLA_FLAGS", ""), metadata.version("jaxlib")
    row = cpu_flags() if jaxlib in CPU_JAXLIBS else ()
    added_flags = [] if any(flag.partition("=")[0] in flags for flag in row) else [*row]
    if jaxlib in _GPU_JAXLIBS and any(map(importlib.util.find_spec, _CUDA_PLUGINS)):
        added_flags += [f"--{name}=false" for name in _GPU_OPTIONS if name not in flags]
    return " ".join([flags, *added_flags]).strip()


def cpu_flags() -> tuple[str, ...]:
    """The flags of this processor's row of CPU_FLAGS."""
    instructions = cpu_instructions()
    return next((flags for instruction, flags in CPU_FLAGS if instruction in instructions), ())


def cpu_instructions() -> set[str]:
    """The instructions of this processor by their flags in /proc/cpuinfo; empty where there is no such file."""
    from t5xpg.base.environment import cpu_facts  # not needed to start

    return set(cpu_facts().get("flags", "").split())


def describe_products(dtype: str) -> str:
    """How products of this dtype are computed on this processor, and why: "bfloat16 by oneDNN (avx512_bf16)"."""
    from importlib import metadata  # not needed to start

    instructions = cpu_instructions()
    row = next((instruction for instruction, _ in CPU_FLAGS if instruction in instructions), None)
    if dtype == "bfloat16" and instructions and "avx512_bf16" not in instructions:
        return "bfloat16, which this processor computes in float32: float32 is as fast (DTYPE = 'float32')"
    if f"--{_ONEDNN}=true" in _flags():
        return f"{dtype} by oneDNN" + (f" ({row})" if row else "")
    if row and (jaxlib := metadata.version("jaxlib")) not in CPU_JAXLIBS:
        return f"{dtype}, as jaxlib {jaxlib} computes them: which flags it gains by is not known"
    return f"{dtype}, as XLA computes them by default"
