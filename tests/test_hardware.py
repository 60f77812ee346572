"""Published and measured peaks."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from t5xpg.hardware import PEAK_TERAFLOPS, measured_peak_flops, peak_flops, peak_flops_of_mesh
from t5xpg.partitioning import MeshConfig, make_mesh


def device(kind: str, platform: str = "gpu") -> SimpleNamespace:
    return SimpleNamespace(device_kind=kind, platform=platform)


@pytest.mark.parametrize(
    ("kind", "dtype", "tera"),
    [
        ("NVIDIA H200", "bfloat16", 989.4),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "bfloat16", 756.0),
        ("NVIDIA A100-SXM4-40GB", "float32", 156.0),
        ("NVIDIA L4", "bfloat16", 121.0),
        ("NVIDIA L40S", "bfloat16", 362.0),
        ("Tesla T4", "float16", 65.0),
        ("Tesla T4", "bfloat16", None),
        ("NVIDIA GeForce RTX 4090", "bfloat16", None),
        ("TPU v5 lite", "bfloat16", 197.0),
        ("TPU v4", "float32", 275.0),
    ],
)
def test_published_peaks(kind, dtype, tera):
    expected = None if tera is None else tera * 1e12
    assert peak_flops(device(kind), dtype) == expected


def test_cpus_have_no_published_peak():
    assert peak_flops(device("L4", "cpu"), "float32") is None
    assert peak_flops(jax.devices("cpu")[0], "float32") is None


def test_no_entry_hides_a_later_one():
    for name, table in PEAK_TERAFLOPS:
        dtype = next(iter(table))
        assert peak_flops(device(f"NVIDIA {name} 80GB"), dtype) == table[dtype] * 1e12


def test_measured_peak():
    assert measured_peak_flops("float32", size=64, seconds=0.0) > 1e6


def test_the_peak_of_a_mesh():
    mesh = SimpleNamespace(devices=np.array([[device("NVIDIA H200"), device("NVIDIA H200")]]))
    assert peak_flops_of_mesh(mesh, "bfloat16") == pytest.approx(2 * 989.4e12)
    unknown = SimpleNamespace(devices=np.array([[device("Fast Thing", "gpu")]]))
    assert peak_flops_of_mesh(unknown, "bfloat16") is None
    cpu = make_mesh(MeshConfig(), jax.devices("cpu"))
    assert peak_flops_of_mesh(cpu, "float32") > 1e8
