"""A checkpoint of scanned layers goes on with plain ones, and the other way round."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from t5xpg.distributed import MeshConfig, make_mesh, state_shardings, with_shardings
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.positions import Buckets
from t5xpg.optim import state as state_lib
from t5xpg.optim.optimizers import Adafactor, Muon, Optimizer
from t5xpg.optim.state import TrainState
from t5xpg.run.checkpoint.checkpoint_items import optimizer_tree, sha256_of_arrays
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from tests.refusals import refused

CONFIG = T5Config(
    vocab_size=32, emb_dim=8, num_heads=2, head_dim=4, num_encoder_layers=2, num_decoder_layers=1, mlp_dim=16,
    dropout_rate=0.1, positions=Buckets(in_every_layer=True),
)  # fmt: skip
PLAIN = EncoderDecoderModel(CONFIG)
SCANNED = EncoderDecoderModel(dataclasses.replace(CONFIG, scan_layers=True, remat_policy="dots"))
MESH = make_mesh(MeshConfig(devices=1))
OPTIMIZERS: dict[str, Optimizer] = {"Adafactor": Adafactor(0.01, min_dim_size_to_factor=8), "Muon": Muon(0.01)}


def abstract(model: EncoderDecoderModel, optimizer: Optimizer) -> TrainState:
    found = state_lib.abstract(model, optimizer)
    return with_shardings(found, state_shardings(model.logical_axes(), found, MESH))


def new(model: EncoderDecoderModel, optimizer: Optimizer) -> TrainState:
    """A state with numbers that differ everywhere, of which none was computed."""
    draw = np.random.default_rng(0).uniform
    return jax.tree.map(
        lambda leaf: jax.device_put(draw(0.1, 1, leaf.shape).astype(leaf.dtype), leaf.sharding),
        abstract(model, optimizer),
    )


def saved(folder: Path, state: TrainState) -> None:
    with Checkpointer(folder, CheckpointConfig()) as checkpoints:
        checkpoints.save(int(state.step), state, {}, {})


def restored(folder: Path, model: EncoderDecoderModel, optimizer: Optimizer) -> TrainState:
    with Checkpointer(folder, CheckpointConfig(), read_only=True) as checkpoints:
        return checkpoints.restore(None, abstract(model, optimizer))[0]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_there_and_back(tmp_path, name) -> None:
    """Parameters and all statistics, bit for bit, under the names that they have on the other side."""
    optimizer = OPTIMIZERS[name]
    saved(tmp_path / "plain", plain := new(PLAIN, optimizer))
    scanned, like = restored(tmp_path / "plain", SCANNED, optimizer), abstract(SCANNED, optimizer)
    assert jax.tree.structure(scanned) == jax.tree.structure(like)
    for ours, theirs in zip(jax.tree.leaves(scanned), jax.tree.leaves(like), strict=True):
        assert (ours.shape, ours.dtype, ours.sharding) == (theirs.shape, theirs.dtype, theirs.sharding)
    assert sha256_of_arrays(scanned.params) == sha256_of_arrays(plain.params)
    assert sha256_of_arrays(optimizer_tree(scanned)) == sha256_of_arrays(optimizer_tree(plain))
    saved(tmp_path / "scanned", scanned)
    jax.tree.map(np.testing.assert_array_equal, restored(tmp_path / "scanned", PLAIN, optimizer), plain)


def test_parameters_alone_and_what_does_not_fit(tmp_path) -> None:
    optimizer = OPTIMIZERS["Adafactor"]
    saved(tmp_path, state := new(SCANNED, optimizer))
    deeper = EncoderDecoderModel(dataclasses.replace(CONFIG, num_encoder_layers=4))
    with Checkpointer(tmp_path, CheckpointConfig(), read_only=True) as checkpoints:
        params, _ = checkpoints.restore_params(None, abstract(PLAIN, optimizer).params)
        assert sha256_of_arrays(params) == sha256_of_arrays(state.params)
        with refused("encoder/layers/attention/key/kernel", "float32[2, 8, 8]", "float32[4, 8, 8]"):
            checkpoints.restore_params(None, abstract(deeper, optimizer).params)
