"""Published and measured peaks."""

import os
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from t5xpg.base import environment, xla_flags
from t5xpg.base.files import read_json, write_text
from t5xpg.distributed import MeshConfig, hardware, make_mesh
from t5xpg.distributed.hardware import (
    PEAK_TERAFLOPS,
    best_peak_flops,
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


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The cache, and what is measured there, one after another: 3, 2, 5, 4 and 1 Gflop/s."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    peaks = iter([3e9, 2e9, 5e9, 4e9, 1e9])
    monkeypatch.setattr(hardware, "measured_peak_flops", lambda dtype, **options: next(peaks))
    return tmp_path


def test_the_best_measurement_of_a_machine_is_remembered(measured, monkeypatch):
    found = [best_peak_flops(dtype, again=True) for dtype in ("float32", "float32", "float32", "bfloat16")]
    assert found == [3e9, 3e9, 5e9, 4e9]
    monkeypatch.setattr(environment, "cpu_model", lambda: "another")
    assert best_peak_flops("float32", again=True) == 1e9
    assert sorted(read_json(measured / "t5xpg" / "peaks.json").values()) == [1e9, 4e9, 5e9]


@pytest.mark.parametrize("text", ["{", '{"x": NaN}'])
def test_what_is_remembered_may_be_anything(measured, monkeypatch, text):
    file = measured / "t5xpg" / "peaks.json"
    file.parent.mkdir()
    write_text(file, text)
    assert best_peak_flops("float32", again=True) == 3e9
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))  # no folder
    assert best_peak_flops("float32", again=True) == 2e9


def test_a_share_is_never_above_the_whole():
    assert share_of_peak(1.04e9, 1e9) == 1.0
    assert share_of_peak(5e8, 1e9) == 0.5
    assert share_of_peak(1.0, None) is None


def test_memory():
    of_cpu = device_memory(jax.devices("cpu")[0])
    assert 2**28 < of_cpu <= environment.host()["memory_bytes"]
    gpu = SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 80 * 2**30})
    assert device_memory(gpu) == 80 * 2**30
    assert device_memory(SimpleNamespace(platform="gpu", memory_stats=lambda: None)) is None


def test_the_peak_of_a_mesh(monkeypatch):
    mesh = SimpleNamespace(devices=np.array([[device("NVIDIA H200"), device("NVIDIA H200")]]))
    assert peak_flops_of_mesh(mesh, "bfloat16") == pytest.approx(2 * 989.4e12)
    cpu = make_mesh(MeshConfig(), jax.devices("cpu"))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert peak_flops_of_mesh(cpu, "float32") is None


def test_the_peak_of_a_cpu_is_measured_again_only_where_that_is_asked_for(measured):
    cpu = make_mesh(MeshConfig(), jax.devices("cpu"))
    assert peak_flops_of_mesh(cpu, "float32") == peak_flops_of_mesh(cpu, "float32") == 3e9
    assert peak_flops_of_mesh(cpu, "float32", again=True) == 3e9
    assert peak_flops_of_mesh(cpu, "float32", again=True) == peak_flops_of_mesh(cpu, "float32") == 5e9


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
