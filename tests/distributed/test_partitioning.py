"""Meshes and the parts of arrays on them; what is computed on eight devices: on_eight_devices.py."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from t5xpg.distributed import MeshConfig, check_batch_size, make_mesh, params_shardings, state_shardings
from t5xpg.optim.optimizers import Adafactor, AdamW, AdamWScale, Muon
from t5xpg.optim.state import TrainState
from tests.refusals import refused
from tests.workplace import REPOSITORY


@pytest.mark.process
def test_on_eight_devices(tmp_path: Path) -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    file = Path(__file__).with_name("on_eight_devices.py")
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", f"--basetemp={tmp_path}", str(file)]
    done = subprocess.run(command, env=os.environ | flags, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""


def test_a_mesh_that_cannot_be_is_refused():
    for sizes, *named in (
        ({"data": 3}, "3 devices", "data 3 x model 1", "2 GPU devices"),
        ({"model": 4}, "model 4", "2 devices"),
        ({"devices": 5}, "5 devices"),
        ({"data": 1, "model": 1, "devices": 2}, "data 1 x model 1", "2 devices"),
        ({"data": 0}, "MeshConfig.data is 0"),
        ({"model": -1}, "MeshConfig.model is -1"),
        ({"slices": 0}, "MeshConfig.slices is 0"),
        ({"slices": 3}, "slices 3", "2 devices"),
        ({"slices": 2, "data": 2}, "4 devices", "slices 2 x data 2 x model 1", "2 GPU devices"),
    ):
        with refused(*named):
            make_mesh(MeshConfig(**sizes), [SimpleNamespace(platform="gpu")] * 2)


def test_one_device_is_a_mesh():
    mesh = make_mesh(MeshConfig(devices=1))
    assert dict(mesh.shape) == {"data": 1, "model": 1}
    shardings = params_shardings({"w": ("embed", "mlp")}, {"w": jax.ShapeDtypeStruct((3, 5), np.float32)}, mesh)
    assert shardings["w"].spec == PartitionSpec()


def mesh_of(data: int, model: int) -> AbstractMesh:
    return AbstractMesh((data, model), ("data", "model"))


def spec(axes: tuple[str, ...], shape: tuple[int, ...], **options) -> PartitionSpec:
    leaf = jax.ShapeDtypeStruct(shape, np.float32)
    found = params_shardings({"layer": {"w": axes}}, {"layer": {"w": leaf}}, mesh_of(2, 4), **options)
    return found["layer"]["w"].spec


def test_rules():
    assert spec(("vocab", "embed"), (8, 3)) == PartitionSpec("model")
    assert spec(("embed", "mlp"), (3, 8)) == PartitionSpec(None, "model")
    assert spec(("embed",), (3,)) == PartitionSpec()
    assert spec(("heads", "relpos_buckets"), (4, 32)) == PartitionSpec("model")
    assert spec(("mlp", "vocab"), (8, 8)) == PartitionSpec(None, "model")  # the rule of "vocab" comes first
    with refused("MeshConfig.rules", "Did you mean model?"):
        MeshConfig(rules=(("heads", "modle"), ("embed", ["data", "model"])))
    rules = (("embed", "data"), ("mlp", "model"))
    assert spec(("embed", "mlp"), (4, 8), rules=rules) == PartitionSpec("data", "model")


@pytest.mark.parametrize(
    "optimizer", [AdamW(0.1), AdamWScale(0.1), Muon(0.1), Adafactor(0.1), Adafactor(0.1, momentum=0.9)]
)
def test_the_optimisers_arrays_lie_with_their_parameters(optimizer):
    axes = {"mlp": {"wi": ("embed", "mlp")}, "embedder": {"embedding": ("vocab", "embed")}, "norm": ("embed",)}
    shapes = {"mlp": {"wi": (6, 8)}, "embedder": {"embedding": (16, 6)}, "norm": (6,)}
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, np.float32), shapes, is_leaf=lambda x: type(x) is tuple
    )
    opt_state = jax.eval_shape(optimizer.transformation(axes).init, params)
    state = TrainState(step=jax.ShapeDtypeStruct((), np.int32), params=params, opt_state=opt_state)
    shardings = state_shardings(axes, state, mesh_of(2, 4))
    specs = {(6, 8): PartitionSpec(None, "model"), (16, 6): PartitionSpec("model"), (6,): PartitionSpec()}
    leaves = list(zip(jax.tree.leaves(state), jax.tree.leaves(shardings), strict=True))
    assert all(sharding.spec == specs.get(leaf.shape, PartitionSpec()) for leaf, sharding in leaves)
    assert sum(leaf.shape == (6, 8) for leaf, _ in leaves) >= 2


def test_a_dimension_that_does_not_divide_is_refused():
    with refused("layer/w", "(3, 6)", "'mlp' of 6", "4 devices"):
        spec(("embed", "mlp"), (3, 6))
    with refused("layer/w", "Did you mean vocab?"):
        spec(("voacb", "embed"), (8, 3))


def test_batch_sizes():
    check_batch_size(16, mesh_of(4, 2), num_microbatches=2)
    with refused("BATCH_SIZE is 12", "4 data-parallel devices x 2 microbatches", "multiple of 8"):
        check_batch_size(12, mesh_of(4, 2), num_microbatches=2)
    with refused("BATCH_SIZE is 0"):
        check_batch_size(0, mesh_of(1, 1))
