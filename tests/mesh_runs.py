"""Run by test_partitioning.py in a process with eight simulated devices; prints what it finds as JSON.

Usage: mesh_runs.py <empty folder for checkpoints>
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

from t5xpg.data.spec import DatasetConfig
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.distributed import (
    MeshConfig,
    batch_sharding,
    jit_create,
    jit_eval_step,
    jit_train_step,
    make_mesh,
    params_shardings,
    shard_batch,
    standard_logical_axis_rules,
    state_shardings,
    with_shardings,
)
from t5xpg.evaluate.predicting import model_outputs
from t5xpg.models.config import T5Config
from t5xpg.models.decoding import DecodingConfig
from t5xpg.models.encoder_decoder import EncoderDecoderModel, Params
from t5xpg.models.losses import LossConfig
from t5xpg.models.rng import stream_key
from t5xpg.optim import state as state_lib
from t5xpg.optim.optimizers import Adafactor, AdamW, AdamWScale, Muon, Optimizer
from t5xpg.optim.state import TrainState
from t5xpg.optim.step import make_eval_step, make_train_step
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer

V, D, B, S, T = 32, 8, 16, 6, 4
STEPS, SAVED = 20, 10
MODEL = EncoderDecoderModel(
    T5Config(
        vocab_size=V,
        emb_dim=D,
        num_heads=8,
        head_dim=4,
        num_encoder_layers=1,
        num_decoder_layers=1,
        mlp_dim=16,
        dropout_rate=0.0,
    )
)
WITH_DROPOUT = EncoderDecoderModel(dataclasses.replace(MODEL.config, dropout_rate=0.1))
TOKEN_BYTES = np.ones(V, np.int32)

OPTIMIZERS: dict[str, Optimizer] = {
    # Factors the matrices with two dimensions of 16 and more, keeps full statistics of the others.
    "Adafactor": Adafactor(0.01, min_dim_size_to_factor=16, epsilon1=1e-8),
    "AdamW": AdamW(0.003),
    "AdamWScale": AdamWScale(0.02),
    "Muon": Muon(0.015),
}


class Layout(NamedTuple):
    """Devices along "data" and "model", parts of a batch, slices, and T5X's dims for parameters and activations."""

    data: int
    model: int
    parts: int = 1
    slices: int = 1
    parameters: int = 1
    activations: int = 1

    def __str__(self) -> str:
        return "x".join(map(str, self))

    @property
    def mesh(self) -> MeshConfig:
        rules = standard_logical_axis_rules(self.activations, self.parameters)
        return MeshConfig(data=self.data, model=self.model, slices=self.slices, rules=rules)


ALONE = Layout(1, 1)
FSDP = Layout(8, 1, 2, parameters=2)
FSDP_AND_TENSOR = Layout(2, 4, 1, parameters=2)
# Adafactor, the optimiser of T5X, sees 1 to 8 devices each way and 1, 2 and 4 parts; the others some of each.
# The first layout's checkpoint is gone on with on the last, and a single one's on one device.
LAYOUTS: dict[str, list[Layout]] = {
    "Adafactor": [
        Layout(4, 1, 4),
        FSDP,
        Layout(8, 1, 2),
        Layout(1, 8),
        Layout(2, 4, 4),
        FSDP_AND_TENSOR,
        Layout(2, 2, slices=2, parameters=2, activations=2),
        Layout(1, 4, 2),
    ],
    "AdamW": [Layout(8, 1, parameters=2), Layout(1, 4, 4)],
    "AdamWScale": [Layout(2, 2, 2, parameters=2)],
    "Muon": [Layout(2, 1, 4, slices=2), Layout(2, 2, 1, parameters=2)],
}


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
    """One layout of the devices, its compiled step and its state."""

    def __init__(self, optimizer: Optimizer, layout: Layout, model: EncoderDecoderModel = MODEL) -> None:
        self.optimizer, self.model = optimizer, model
        self.parts, self.rules = layout.parts, layout.mesh.rules
        self.mesh = make_mesh(layout.mesh)
        self.abstract = state_lib.abstract(model, optimizer)
        self.shardings = state_shardings(model.logical_axes(), self.abstract, self.mesh, self.rules)
        step = make_train_step(
            model, optimizer, LossConfig(), num_microbatches=self.parts, seed=5, token_bytes=TOKEN_BYTES
        )
        self.jitted = jit_train_step(step, self.mesh, self.shardings, 0, self.rules)
        self.losses: list[float] = []

    def compile(self) -> Run:
        self.step = self.jitted.lower(self.abstract, batch(0)).compile()
        return self

    def create(self) -> Run:
        key = stream_key(5, "params")
        self.state = jit_create(lambda: state_lib.create(self.model, self.optimizer, key), self.shardings)
        return self

    def begin(self, params: Params) -> Run:
        """As `create` where the parameters are known: this compiles nothing."""
        opt_state = self.optimizer.transformation(self.model.logical_axes()).init(params)
        self.state = jax.device_put(TrainState(np.zeros((), np.int32), params, opt_state), self.shardings)
        return self

    def train(self, first: int, last: int) -> Run:
        for number in range(first, last):
            self.state, metrics = self.step(self.state, shard_batch(batch(number), batch_sharding(self.mesh)))
            self.losses.append(float(metrics["loss"]))
        return self

    def save(self, folder: Path, step: int) -> Run:
        with Checkpointer(folder, CheckpointConfig()) as checkpoints:
            checkpoints.save(step, self.state, {}, {})
        return self

    def restore(self, folder: Path, step: int) -> Run:
        with Checkpointer(folder, CheckpointConfig(), read_only=True) as checkpoints:
            self.state, _, _ = checkpoints.restore(step, with_shardings(self.abstract, self.shardings))
        return self


def host(tree):
    return jax.tree.map(lambda leaf: np.array(leaf), tree)


def distance(a, b) -> float:
    pairs = list(zip(jax.tree.leaves(host(a)), jax.tree.leaves(host(b)), strict=True))
    return float(np.sqrt(sum(np.sum((x - y) ** 2) for x, y in pairs) / sum(np.sum(y**2) for _, y in pairs)))


def equal(a, b) -> bool:
    pairs = zip(jax.tree.leaves(host(a)), jax.tree.leaves(host(b)), strict=True)
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


def relative(ours: list[float], theirs: list[float]) -> float:
    return float(np.max(np.abs(np.divide(ours, theirs) - 1)))


def agreement(runs: dict[Layout, Run], params: Params, folder: Path) -> dict:
    """How far each layout ends from one device alone, and a run that moves to another layout half way."""
    alone = runs[ALONE].begin(params).train(0, STEPS)
    layouts = [layout for layout in runs if layout != ALONE]
    found: dict = {"moved": distance(alone.state.params, params), "layouts": {}}
    for layout in layouts:
        run = runs[layout].begin(params).train(0, SAVED)
        if layout == layouts[0]:
            run.save(folder, SAVED)
            saved = host(run.state)
        run.train(SAVED, STEPS)
        found["layouts"][str(layout)] = {
            "losses": relative(run.losses, alone.losses),
            "params": distance(run.state.params, alone.state.params),
        }
    other = runs[layouts[-1] if len(layouts) > 1 else ALONE].restore(folder, SAVED)
    found["restored"] = {
        "equal": equal(other.state, saved),
        "lies": jax.tree.map(lambda leaf: leaf.sharding, other.state) == other.shardings,
        "params": distance(other.train(SAVED, STEPS).state.params, alone.state.params),
    }
    return found


def parts_of(run: Run) -> dict[str, list[int]]:
    """The shapes that one device holds."""
    trees = {
        "embedding": run.state.params["token_embedder"],
        "wi_0": run.state.params["encoder"]["layers_0"]["mlp"]["wi_0"],
        "wo": run.state.params["encoder"]["layers_0"]["mlp"]["wo"],
        "wi_0's statistics": run.state.opt_state[0].v["encoder"]["layers_0"]["mlp"]["wi_0"],
    }
    return {name: list(jax.tree.leaves(tree)[0].addressable_shards[0].data.shape) for name, tree in trees.items()}


def parameters_alone(folder: Path, run: Run) -> bool:
    """Whether reading the parameters alone from a checkpoint gives those of the run's state."""
    shardings = params_shardings(MODEL.logical_axes(), run.abstract.params, run.mesh, run.rules)
    with Checkpointer(folder, CheckpointConfig(), read_only=True) as checkpoints:
        params, _ = checkpoints.restore_params(SAVED, with_shardings(run.abstract.params, shardings))
    return equal(params, run.restore(folder, SAVED).state.params)


def continued(run: Run, params: Params, folder: Path) -> bool:
    """Whether a run ends bit for bit where it ends when it is interrupted."""
    end = host(run.begin(params).train(0, 2).save(folder, 2).train(2, 4).state)
    return equal(run.restore(folder, 2).train(2, 4).state, end)


def collectives(run: Run) -> dict[str, list[list[int]]]:
    """The shapes that each kind of collective operation of the compiled step gives."""
    found: dict[str, list[list[int]]] = {"all-gather": [], "all-reduce": [], "reduce-scatter": []}
    for result, kind in re.findall(r"= (\S.*?) (all-gather|all-reduce|reduce-scatter)\(", run.step.as_text()):
        for sizes in re.findall(r"f32\[([\d,]+)\]", result):
            found[kind].append([int(size) for size in sizes.split(",")])
    return found


def evaluated(one: Run, many: Run) -> dict[str, float]:
    evaluate = make_eval_step(MODEL, LossConfig(), token_bytes=TOKEN_BYTES)
    alone, together = (
        jit_eval_step(evaluate, run.mesh, run.shardings.params, 0, run.rules)(
            run.state.params, shard_batch(batch(9), batch_sharding(run.mesh))
        )
        for run in (one, many)
    )
    return {name: abs(float(together[name]) / float(alone[name]) - 1) for name in ("cross_entropy", "weights")}


def outputs(one: Run, many: Run, params: Params) -> dict[str, float | bool]:
    """Predictions and scores for the metrics of tasks: whether they agree; the last rows are filled up."""
    rows = {name: np.where(np.arange(B)[:, None] < B - 3, array, 0) for name, array in batch(9).items()}
    lengths = {"inputs": rows["encoder_input_tokens"].shape[1], "targets": T}
    dataset = DatasetConfig("none", lengths, batch_size=B)
    found = []
    for run in (one, many):
        built: Any = SimpleNamespace(
            experiment=SimpleNamespace(
                model=MODEL, eval_dataset=dataset, decoding=DecodingConfig(), mesh=SimpleNamespace(rules=run.rules)
            ),
            mesh=run.mesh,
            shardings=run.shardings,
            on_devices=functools.partial(shard_batch, sharding=batch_sharding(run.mesh)),
        )
        functions = model_outputs(built, Vocabulary())
        here = jax.device_put(params, run.shardings.params)
        found.append((functions.predict(here, rows, np.arange(B, dtype=np.int32)), functions.score(here, rows)))
    (predicted, scores), (others, other_scores) = found
    return {
        "predictions": np.array_equal(predicted, others) and predicted.shape == (B, T) and bool(predicted.any()),
        "scores": float(np.max(np.abs(scores - other_scores))) if scores.any() else np.inf,
    }


def main(folder: Path) -> None:
    created, split = (Run(OPTIMIZERS["Adafactor"], layout).create() for layout in (ALONE, Layout(2, 4)))
    found: dict = {
        "devices": len(jax.devices()),
        "created": distance(split.state, created.state),
        "parts": parts_of(split),
        "parts of FSDP": parts_of(Run(OPTIMIZERS["Adafactor"], FSDP).create()),
        "optimizers": {},
    }
    params = host(created.state.params)
    runs = {
        name: {layout: Run(optimizer, layout) for layout in (ALONE, *LAYOUTS[name])}
        for name, optimizer in OPTIMIZERS.items()
    }
    dropout = Run(OPTIMIZERS["Adafactor"], FSDP_AND_TENSOR, WITH_DROPOUT)
    with ThreadPoolExecutor(2) as pool:  # most of the time goes into compiling
        list(pool.map(Run.compile, [*(run for own in runs.values() for run in own.values()), dropout]))
    for name, own in runs.items():
        found["optimizers"][name] = agreement(own, params, folder / name)
    adafactor = runs["Adafactor"]
    found["evaluation"] = [evaluated(adafactor[ALONE], adafactor[layout]) for layout in (Layout(2, 4, 4), FSDP)]
    found["collectives of FSDP"] = collectives(adafactor[FSDP])
    axes = jax.tree.leaves(MODEL.logical_axes(), is_leaf=lambda node: isinstance(node, tuple))
    leaves = zip(jax.tree.leaves(params), axes, strict=True)
    matrices = [leaf.shape for leaf, names in leaves if leaf.ndim == 2 and "embed" in names]
    found["matrices"], found["number of matrices"] = sorted(set(matrices)), len(matrices)
    found["outputs"] = [
        outputs(adafactor[ALONE], adafactor[layout], params) for layout in (Layout(8, 1, 2), FSDP_AND_TENSOR)
    ]
    found["parameters alone"] = parameters_alone(folder / "Adafactor", adafactor[FSDP])
    found["continues"] = continued(dropout, params, folder / "dropout")
    json.dump(found, sys.stdout)


main(Path(sys.argv[1]))
