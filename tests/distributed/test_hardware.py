"""Published peaks, memory, and flags for kinds of hardware."""

import os
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from t5xpg.base import environment, xla_flags
from t5xpg.distributed import MeshConfig, make_mesh
from t5xpg.distributed.hardware import (
    PEAK_TERAFLOPS,
    device_memory,
    peak_flops,
    peak_flops_of_mesh,
    share_of_peak,
)


def device(kind: str, platform: str = "gpu") -> SimpleNamespace:
    return SimpleNamespace(device_kind=kind, platform=platform)


def test_published_peaks():
    for kind, dtype, tera in (
        ("NVIDIA H200", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "bfloat16", 756.0),
        ("NVIDIA A100-SXM4-40GB", "float32", 156.0),
        ("NVIDIA L4", "bfloat16", 121.0),
        ("NVIDIA L40S", "bfloat16", 362.0),
        ("TPU v5 lite", "bfloat16", 197.0),
    ):
        assert peak_flops(device(kind), dtype) == tera * 1e12
    for kind in ("Tesla T4", "NVIDIA GeForce RTX 4090"):
        assert peak_flops(device(kind), "bfloat16") is None


def test_no_entry_hides_a_later_one():
    for name, table in PEAK_TERAFLOPS:
        dtype = next(iter(table))
        assert peak_flops(device(f"NVIDIA {name} 80GB"), dtype) == table[dtype] * 1e12


def test_memory():
    of_cpu = device_memory(jax.devices("cpu")[0])
    assert 2**28 < of_cpu <= environment.host()["memory_bytes"]
    gpu = SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 80 * 2**30})
    assert device_memory(gpu) == 80 * 2**30
    assert device_memory(SimpleNamespace(platform="gpu", memory_stats=lambda: None)) is None


def test_the_peak_of_a_mesh():
    mesh = SimpleNamespace(devices=np.array([[device("NVIDIA H200"), device("NVIDIA H200")]]))
    assert peak_flops_of_mesh(mesh, "bfloat16") == pytest.approx(2 * 989.4e12)
    assert share_of_peak(989.4e12, 2 * 989.4e12) == 0.5
    assert share_of_peak(1.0, peak_flops_of_mesh(make_mesh(MeshConfig(), jax.devices("cpu")), "float32")) is None


DECIDED = "--xla_cpu_experimental_onednn_custom_call=false"  # by the user: the flags of a processor go together


@pytest.mark.parametrize(
    ("instructions", "jaxlib", "given", "expected"),
    [
        ("avx2 avx512f avx512_bf16", "0.12.0.1", "", xla_flags.CPU_FLAGS[0][1]),
        ("avx2", "0.12.0.1", "", ()),
        ("avx2 avx512_bf16", "0.10.2", "", ()),
        ("avx2 avx512_bf16", "9.9.9", "", ()),
        ("avx2 avx512_bf16", "0.12.0.1", DECIDED, (DECIDED,)),
    ],
)
def test_flags_for_cpus_of_known_versions(monkeypatch, instructions, jaxlib, given, expected):
    monkeypatch.setattr(environment, "cpu_facts", lambda: {"flags": instructions})
    monkeypatch.setattr("importlib.metadata.version", lambda name: jaxlib)
    monkeypatch.setenv("XLA_FLAGS", given)
    xla_flags.set_xla_flags()
    assert tuple(os.environ["XLA_FLAGS"].split()) == expected


def test_triton_kernels_are_not_tuned_where_jax_has_its_plugin_for_cuda(monkeypatch):
    gemm, fusions = "--xla_gpu_enable_triton_gemm=", "--xla_gpu_experimental_enable_fusion_autotuner="
    monkeypatch.setenv("XLA_FLAGS", "")
    xla_flags.set_xla_flags()
    assert gemm not in os.environ["XLA_FLAGS"]
    monkeypatch.setattr(xla_flags, "_CUDA_PLUGINS", ("no_such_plugin", "jax"))
    monkeypatch.setenv("XLA_FLAGS", f"{fusions}true")
    xla_flags.set_xla_flags()
    decided = os.environ["XLA_FLAGS"].split()
    assert {f"{fusions}true", f"{gemm}false"} <= set(decided)
    assert f"{fusions}false" not in decided, "the user has decided"
