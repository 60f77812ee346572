"""One mesh or another: the same numbers, and parts where they belong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from t5xpg import distributed
from t5xpg.base.errors import UserError
from t5xpg.distributed import MeshConfig, check_batch_size, make_mesh, params_shardings, shard_batch, state_shardings
from t5xpg.optim.optimizers import Adafactor, AdamW, AdamWScale, Muon
from t5xpg.optim.state import TrainState
from tests.workplace import REPOSITORY

ROOT = REPOSITORY


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What tests/mesh_runs.py finds on eight simulated devices."""
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    environment = os.environ | {
        "XLA_FLAGS": f"{flags} --xla_llvm_disable_expensive_passes=true",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, str(ROOT / "tests" / "mesh_runs.py"), str(tmp_path_factory.mktemp("checkpoints"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.process
@pytest.mark.parametrize("optimizer", ["Adafactor", "AdamW", "AdamWScale", "Muon"])
def test_every_mesh_and_every_accumulation_trains_alike(found, optimizer):
    """Data and tensor parallel, batches in parts: the same after 20 steps as on one device with whole batches."""
    assert found["devices"] == 8
    results = found["optimizers"][optimizer]
    assert results["moved"] > 0.03
    for layout, differences in results["layouts"].items():
        assert differences["losses"] < 1e-5, layout
        assert differences["params"] < 1e-5, layout


@pytest.mark.process
def test_a_new_state_is_the_same_on_every_mesh(found):
    assert found["created"] < 1e-6


@pytest.mark.process
def test_fsdp_gathers_parameters_and_scatters_gradients(found):
    """Of the compiled step: every matrix is gathered for each pass, and none is summed up whole."""
    collectives = found["collectives of FSDP"]
    matrices = {tuple(shape) for shape in found["matrices"]}
    gathered = [tuple(shape) for shape in collectives["all-gather"] if tuple(shape) in matrices]
    # for the forward and for the backward pass, which of the embedding needs nothing
    assert len(gathered) == 2 * found["number of matrices"] - 1
    scattered = {tuple(shape) for shape in collectives["reduce-scatter"]}
    parts = {
        tuple(size // 8 if place == split else size for place, size in enumerate(shape))
        for shape in matrices
        for split in (0, 1)
        if shape[split] == 8
    }
    assert scattered <= parts
    assert len(collectives["reduce-scatter"]) >= found["number of matrices"]
    assert not matrices & {tuple(shape) for shape in collectives["all-reduce"]}


@pytest.mark.process
def test_parameters_and_statistics_are_split(found):
    assert found["parts"] == {
        "embedding": [32 // 4, 8],
        "wi_0": [8, 16 // 4],
        "wo": [16 // 4, 8],
        "wi_0's statistics": [8, 16 // 4],
    }
    assert found["parts of FSDP"] == {
        "embedding": [32, 8 // 8],
        "wi_0": [8 // 8, 16],
        "wo": [16, 8 // 8],
        "wi_0's statistics": [8 // 8, 16],
    }


@pytest.mark.process
@pytest.mark.parametrize("optimizer", ["Adafactor", "AdamW", "AdamWScale", "Muon"])
def test_a_checkpoint_of_one_mesh_goes_on_on_another(found, optimizer):
    """From data to tensor parallel, from FSDP to one device, and so on."""
    results = found["optimizers"][optimizer]["restored"]
    assert results["equal"]
    assert results["lies"]
    assert results["params"] < 1e-5


@pytest.mark.process
def test_the_parameters_alone_restore_on_another_mesh(found):
    assert found["parameters alone"] is True


@pytest.mark.process
def test_a_run_that_continues_is_the_unbroken_run_bit_for_bit(found):
    assert found["continues"] is True


@pytest.mark.process
def test_evaluation_agrees(found):
    assert all(difference < 1e-5 for differences in found["evaluation"] for difference in differences.values())


@pytest.mark.process
def test_predictions_and_scores_agree(found):
    """Over devices along "data", and along both axes with parameters that are gathered."""
    for outputs in found["outputs"]:
        assert outputs["predictions"] is True
        assert outputs["scores"] < 1e-5


def devices(count: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(platform="gpu") for _ in range(count)]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 3}, r"asks for 3 devices \(data 3 x model 1\); here are 2 GPU devices"),
        ({"model": 4}, r"asks for data as many as there are x model 4, which does not make 2 devices"),
        ({"devices": 5}, r"asks for 5 devices"),
        ({"data": 1, "model": 1, "devices": 2}, r"data 1 x model 1, which does not make 2 devices"),
        ({"data": 0}, r"MeshConfig.data is 0"),
        ({"model": -1}, r"MeshConfig.model is -1"),
        ({"slices": 0}, r"MeshConfig.slices is 0"),
        ({"slices": 3}, r"slices 3 x data as many as there are x model 1, which does not make 2 devices"),
        ({"slices": 2, "data": 2}, r"asks for 4 devices \(slices 2 x data 2 x model 1\); here are 2 GPU devices"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(sizes, message):
    with pytest.raises(UserError, match=message):
        make_mesh(MeshConfig(**sizes), devices(2))


def test_one_device_is_a_mesh():
    mesh = make_mesh(MeshConfig(devices=1))
    assert dict(mesh.shape) == {"data": 1, "model": 1}
    shardings = params_shardings({"w": ("embed", "mlp")}, {"w": jax.ShapeDtypeStruct((3, 5), np.float32)}, mesh)
    assert shardings["w"].spec == PartitionSpec()


def mesh_of(data: int, model: int) -> AbstractMesh:
    return AbstractMesh((data, model), ("data", "model"))


def spec(axes: tuple[str, ...], shape: tuple[int, ...], mesh=None, **options) -> PartitionSpec:
    leaf = jax.ShapeDtypeStruct(shape, np.float32)
    return params_shardings({"layer": {"w": axes}}, {"layer": {"w": leaf}}, mesh or mesh_of(2, 4), **options)["layer"][
        "w"
    ].spec


def test_rules():
    assert spec(("vocab", "embed"), (8, 3)) == PartitionSpec("model")
    assert spec(("embed", "mlp"), (3, 8)) == PartitionSpec(None, "model")
    assert spec(("embed",), (3,)) == PartitionSpec()
    assert spec(("heads", "relpos_buckets"), (4, 32)) == PartitionSpec("model")
    assert spec(("mlp", "vocab"), (8, 8)) == PartitionSpec(None, "model")  # the rule of "vocab" comes first
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
    with pytest.raises(UserError, match=r"layer/w has the shape \(3, 6\): its dimension 'mlp' of 6 .* the 4 devices"):
        spec(("embed", "mlp"), (3, 6))
    with pytest.raises(UserError, match=r"layer/w: no rule for the axis 'voacb'. Did you mean vocab\?"):
        spec(("voacb", "embed"), (8, 3))


def test_batch_sizes():
    check_batch_size(16, mesh_of(4, 2), num_microbatches=2)
    with pytest.raises(
        UserError, match=r"BATCH_SIZE is 12: .* 4 data-parallel devices x 2 microbatches.* multiple of 8"
    ):
        check_batch_size(12, mesh_of(4, 2), num_microbatches=2)
    with pytest.raises(UserError, match="BATCH_SIZE is 0"):
        check_batch_size(0, mesh_of(1, 1))


def test_sharded_batches_keep_their_rows():
    mesh = make_mesh(MeshConfig(devices=1))
    batch = {"tokens": np.arange(6, dtype=np.int32).reshape(3, 2)}
    sharded = shard_batch(batch, distributed.batch_sharding(mesh))
    np.testing.assert_array_equal(sharded["tokens"], batch["tokens"])
    assert sharded["tokens"].sharding == distributed.batch_sharding(mesh)
