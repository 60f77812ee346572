"""Run by test_partitioning.py in a process with eight simulated devices; prints what it finds as JSON.

Usage: mesh_runs.py <empty folder for checkpoints>
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np

from t5xpg import state as state_lib
from t5xpg.checkpoints import CheckpointConfig, Checkpointer
from t5xpg.losses import LossConfig
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.optimizers import Adafactor
from t5xpg.partitioning import (
    MeshConfig,
    jit_create,
    jit_eval_step,
    jit_train_step,
    make_mesh,
    params_shardings,
    shard_batch,
    state_shardings,
    with_shardings,
)
from t5xpg.rng import stream_key
from t5xpg.step import make_eval_step, make_train_step

V, B, S, T = 32, 16, 6, 4
MODEL = EncoderDecoderModel(
    T5Config(
        vocab_size=V,
        emb_dim=8,
        num_heads=4,
        head_dim=4,
        num_encoder_layers=1,
        num_decoder_layers=1,
        mlp_dim=16,
        dropout_rate=0.1,
    )
)
# Factors the matrices with two dimensions of 16, keeps full statistics of the others.
OPTIMIZER = Adafactor(0.01, min_dim_size_to_factor=16, epsilon1=1e-8)
TOKEN_BYTES = np.ones(V, np.int32)


def batch(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    targets = generator.integers(1, V, (B, T)) * (np.arange(T) < generator.integers(1, T + 1, (B, 1)))
    return {
        "encoder_input_tokens": generator.integers(1, V, (B, S)).astype(np.int32),
        "decoder_target_tokens": targets.astype(np.int32),
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1].astype(np.int32),
        "decoder_loss_weights": (targets > 0).astype(np.int32),
    }


class Run:
    """One mesh, its compiled step and its state."""

    def __init__(self, data: int, model: int, num_microbatches: int = 1) -> None:
        self.mesh = make_mesh(MeshConfig(data=data, model=model))
        self.abstract = state_lib.abstract(MODEL, OPTIMIZER)
        self.shardings = state_shardings(MODEL.logical_axes(), self.abstract, self.mesh)
        step = make_train_step(
            MODEL, OPTIMIZER, LossConfig(), num_microbatches=num_microbatches, seed=5, token_bytes=TOKEN_BYTES
        )
        self.step = jit_train_step(step, self.mesh, self.shardings)
        self.state = None
        self.losses: list[float] = []

    def create(self) -> Run:
        self.state = jit_create(lambda: state_lib.create(MODEL, OPTIMIZER, stream_key(5, "params")), self.shardings)
        return self

    def train(self, first: int, last: int) -> Run:
        for number in range(first, last):
            self.state, metrics = self.step(self.state, shard_batch(batch(number), self.mesh))
            self.losses.append(float(metrics["loss"]))
        return self


def host(tree):
    return jax.tree.map(lambda leaf: np.array(leaf), tree)


def distance(a, b) -> float:
    pairs = list(zip(jax.tree.leaves(host(a)), jax.tree.leaves(host(b)), strict=True))
    return float(np.sqrt(sum(np.sum((x - y) ** 2) for x, y in pairs) / sum(np.sum(y**2) for _, y in pairs)))


def equal(a, b) -> bool:
    pairs = zip(jax.tree.leaves(host(a)), jax.tree.leaves(host(b)), strict=True)
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


def main(folder: Path) -> None:
    found: dict = {"devices": len(jax.devices()), "meshes": {}}
    reference = Run(1, 1).create()
    start = host(reference.state)
    reference.train(0, 3)
    runs = {"1x1": reference}
    for data, model in ((1, 2), (4, 1), (2, 4)):
        run = runs[f"{data}x{model}"] = Run(data, model)
        if (data, model) == (2, 4):
            run.create()
            found["created"] = distance(run.state, start)
        else:
            run.state = jax.device_put(start, run.shardings)
        run.train(0, 2)
        if (data, model) == (2, 4):
            with Checkpointer(folder, CheckpointConfig()) as checkpoints:
                checkpoints.save(2, run.state, {}, {})
            saved = host(run.state)
        run.train(2, 3)
        found["meshes"][f"{data}x{model}"] = {
            "params": distance(run.state.params, reference.state.params),
            "losses": float(np.max(np.abs(np.divide(run.losses, reference.losses) - 1))),
        }
    parts = {
        name: jax.tree.leaves(tree)[0].addressable_shards[0].data.shape
        for name, tree in {
            "embedding": run.state.params["token_embedder"],
            "wi_0": run.state.params["encoder"]["layers_0"]["mlp"]["wi_0"],
            "wo": run.state.params["encoder"]["layers_0"]["mlp"]["wo"],
            "wi_0's statistics": run.state.opt_state[0].v["encoder"]["layers_0"]["mlp"]["wi_0"],
        }.items()
    }
    found["parts"] = {name: list(shape) for name, shape in parts.items()}

    last = runs["2x4"]
    before = host(last.state)
    with Checkpointer(folder, CheckpointConfig()) as checkpoints:
        last.state, _, _ = checkpoints.restore(2, with_shardings(last.abstract, last.shardings))
    found["continues"] = equal(last.train(2, 3).state, before)

    restored: dict = {}
    expected = host(reference.state.params)
    for name in ("1x1", "4x1"):
        other = runs[name]
        with Checkpointer(folder, CheckpointConfig(), read_only=True) as checkpoints:
            other.state, _, _ = checkpoints.restore(None, with_shardings(other.abstract, other.shardings))
            shardings = params_shardings(MODEL.logical_axes(), other.abstract.params, other.mesh)
            params, _ = checkpoints.restore_params(2, with_shardings(other.abstract.params, shardings))
        restored[name] = {
            "equal": equal(other.state, saved) and equal(params, saved.params),
            "lies": jax.tree.map(lambda leaf: leaf.sharding, other.state) == other.shardings,
            "params": distance(other.train(2, 3).state.params, expected),
        }
    found["restored"] = restored

    evaluate = make_eval_step(MODEL, LossConfig(), token_bytes=TOKEN_BYTES)
    one, many = (
        jit_eval_step(evaluate, r.mesh, r.shardings.params)(r.state.params, shard_batch(batch(9), r.mesh))
        for r in (reference, run)
    )
    found["evaluation"] = {name: abs(float(many[name]) / float(one[name]) - 1) for name in ("cross_entropy", "weights")}
    json.dump(found, sys.stdout)


main(Path(sys.argv[1]))
