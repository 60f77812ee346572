"""Flags for XLA's compilers for CPUs and GPUs. They must be set before JAX is imported.

The flags are for the versions of jaxlib that are named here: an unknown flag ends the process.
"""

import importlib.util
import os

# The operations that XLA hands to YNNPACK, a library of kernels for CPUs.
_FUSION_OPTION = "xla_cpu_experimental_ynn_fusion_type"
_JAXLIB = "0.10.2"
# Products with operations around them, and sums: a step of byt5_tiny takes a quarter less time than with the default.
_FUSION_TYPES = "LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE"
_FLAG = f"--{_FUSION_OPTION}={_FUSION_TYPES}"
# For one program: single products, too, without which bfloat16 factors have no float32 result.
SINGLE_PRODUCTS: dict[str, str | bool] = {_FUSION_OPTION: f"{_FUSION_TYPES},LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
# For GPUs: products by cuBLAS and fusions as XLA writes them, in place of compiling and timing Triton kernels for each.
# While it tuned fusions so, an H100 had not compiled the update of T5 1.1 base after 225 s (jax 0.11.2).
_GPU_OPTIONS = ("xla_gpu_enable_triton_gemm", "xla_gpu_experimental_enable_fusion_autotuner")
_GPU_JAXLIBS = (_JAXLIB, "0.11.2")
_CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def set_xla_flags() -> None:
    """Add these flags to XLA_FLAGS unless the user has set them; those for GPUs only if JAX has its CUDA plugin."""
    from importlib import metadata  # not needed to start

    flags, jaxlib = os.environ.get("XLA_FLAGS", ""), metadata.version("jaxlib")
    added_flags = []
    if jaxlib == _JAXLIB and _FUSION_OPTION not in flags:
        added_flags.append(_FLAG)
    if jaxlib in _GPU_JAXLIBS and any(map(importlib.util.find_spec, _CUDA_PLUGINS)):
        added_flags += [f"--{name}=false" for name in _GPU_OPTIONS if name not in flags]
    if added_flags:
        os.environ["XLA_FLAGS"] = " ".join([flags, *added_flags]).strip()


def multiplies_bfloat16() -> bool:
    """True if the processor has instructions for products of bfloat16 numbers with float32 results."""
    from t5xpg.base.environment import cpu_facts  # not needed to start

    return bool({"avx512_bf16", "amx_bf16"} & set(cpu_facts().get("flags", "").split()))


def wide_product_options(dtype: str, platform: str) -> dict[str, str | bool] | None:
    """The compiler options for a program whose products of `dtype` have float32 results, if the processor computes such
    products itself; None if it does not, or if the user has set the flags."""
    is_set = _FLAG in os.environ.get("XLA_FLAGS", "").split()
    applies = dtype == "bfloat16" and platform == "cpu" and is_set and multiplies_bfloat16()
    return SINGLE_PRODUCTS if applies else None
