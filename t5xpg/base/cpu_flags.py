"""What XLA's compiler for CPUs is told. Before JAX is imported.

The flags name the parts of a program that go to its kernel library. They are for one version of jaxlib: an unknown flag
ends the process.
"""

import importlib.metadata
import os

_NAME = "xla_cpu_experimental_ynn_fusion_type"
_JAXLIB = "0.10.2"
# Products, with what stands around them, and sums: a step of byt5_tiny takes a quarter less time than with the default.
_PARTS = "LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE"
_FLAG = f"--{_NAME}={_PARTS}"
# For one program: single products, too, without which bfloat16 factors have no float32 result.
SINGLE_PRODUCTS: dict[str, str | bool] = {_NAME: f"{_PARTS},LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}


def set_cpu_flags() -> None:
    """Add to XLA_FLAGS what makes steps on CPUs faster, unless the user has decided it."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _NAME not in flags and importlib.metadata.version("jaxlib") == _JAXLIB:
        os.environ["XLA_FLAGS"] = f"{flags} {_FLAG}".strip()


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for products of bfloat16 numbers with float32 results."""
    from t5xpg.base.environment import cpu_facts  # not needed to start

    return bool({"avx512_bf16", "amx_bf16"} & set(cpu_facts().get("flags", "").split()))


def wide_product_options(dtype: str, platform: str) -> dict[str, str | bool] | None:
    """What a program is compiled with whose products of `dtype` have float32 results, as its processor computes them
    itself; None where it does not, or where the user decided the flags."""
    allowed = _FLAG in os.environ.get("XLA_FLAGS", "").split()
    is_for_it = dtype == "bfloat16" and platform == "cpu" and allowed and multiplies_bfloat16()
    return SINGLE_PRODUCTS if is_for_it else None
