"""One mesh or another: the same numbers, and parts where they belong. test_partitioning.py runs it, in a process with
eight simulated devices."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from t5xpg.data.spec import DatasetConfig
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.distributed import (
    MeshConfig,
    batch_sharding,
    jit_create,
    jit_eval_step,
    jit_train_step,
    make_mesh,
    standard_logical_axis_rules,
    state_shardings,
    with_shardings,
)
from t5xpg.evaluate.infer_eval import model_outputs
from t5xpg.models.config import T5Config
from t5xpg.models.decoding import DecodingConfig
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.losses import LossConfig
from t5xpg.models.model import Params
from t5xpg.models.rng import stream_key
from t5xpg.optim import state as state_lib
from t5xpg.optim.optimizers import Adafactor, AdamW, AdamWScale, Muon, Optimizer
from t5xpg.optim.state import TrainState
from t5xpg.optim.step import make_eval_step, make_train_step
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from tests.models.test_beyond_t5 import NGRAMS, REDLLM, T5GEMMA2
from tests.small_models import seq2seq

V, D, B, S, T = 32, 8, 16, 6, 4
STEPS, SAVED = 20, 10
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 1}
MODEL = EncoderDecoderModel(T5Config(vocab_size=V, emb_dim=D, num_heads=8, head_dim=4, mlp_dim=16, **LAYERS))
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
        *(Layout(4, 1, 4), FSDP, Layout(8, 1, 2), Layout(1, 8), Layout(2, 4, 4), FSDP_AND_TENSOR),
        *(Layout(2, 2, slices=2, parameters=2, activations=2), Layout(1, 4, 2)),
    ],
    "AdamW": [Layout(8, 1, parameters=2), Layout(1, 4, 4)],
    "AdamWScale": [Layout(2, 2, 2, parameters=2)],
    "Muon": [Layout(2, 1, 4, slices=2), Layout(2, 2, 1, parameters=2)],
}


def batch(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    targets = generator.integers(1, V, (B, T)) * (np.arange(T) < generator.integers(1, T + 1, (B, 1)))
    rows = seq2seq(generator.integers(1, V, (B, S)), targets) | {"decoder_loss_weights": targets > 0}
    return {name: array.astype(np.int32) for name, array in rows.items()}


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

    def compile(self) -> Run:
        self.step = self.jitted.lower(self.abstract, batch(0)).compile()
        return self

    def create(self) -> Run:
        key = stream_key(5, "params")
        create = lambda: state_lib.of_parameters(self.model, self.optimizer, self.model.init(key))  # noqa: E731
        self.state = jit_create(create, self.shardings)
        return self

    def begin(self, params: Params) -> Run:
        """As `create` where the parameters are known: this compiles nothing."""
        opt_state = self.optimizer.transformation(self.model.logical_axes()).init(params)
        self.state = jax.device_put(TrainState(np.zeros((), np.int32), params, opt_state), self.shardings)
        self.losses: list[float] = []
        return self

    def train(self, first: int, last: int) -> Run:
        for number in range(first, last):
            self.state, metrics = self.step(self.state, jax.device_put(batch(number), batch_sharding(self.mesh)))
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


def assert_equal(a, b) -> None:
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), host(a), host(b))


@pytest.fixture(scope="module")
def params() -> Params:
    return host(Run(OPTIMIZERS["Adafactor"], ALONE).create().state.params)


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[Layout, Run]]:
    """By optimiser, and one with dropout: most of the time goes into compiling."""
    assert len(jax.devices()) == 8
    made = {
        name: {layout: Run(optimizer, layout) for layout in (ALONE, *LAYOUTS[name])}
        for name, optimizer in OPTIMIZERS.items()
    }
    made["dropout"] = {FSDP_AND_TENSOR: Run(OPTIMIZERS["Adafactor"], FSDP_AND_TENSOR, WITH_DROPOUT)}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Run.compile, [run for own in made.values() for run in own.values()]))
    return made


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_mesh_and_every_accumulation_trains_alike(runs, params, name, folder) -> None:
    """Data and tensor parallel, batches in parts: the same after 20 steps as on one device with whole batches.

    So does a checkpoint of one mesh that goes on on another.
    """
    own, (first, *others) = runs[name], LAYOUTS[name]
    alone = own[ALONE].begin(params).train(0, STEPS)
    expected = host(alone.state.params)
    assert distance(expected, params) > 0.03
    for layout in (first, *others):
        run = own[layout].begin(params).train(0, SAVED)
        if layout == first:
            saved = host(run.save(folder, SAVED).state)
        run.train(SAVED, STEPS)
        assert np.max(np.abs(np.divide(run.losses, alone.losses) - 1)) < 1e-5, layout
        assert distance(run.state.params, expected) < 1e-5, layout
    other = own[others[-1] if others else ALONE].restore(folder, SAVED)
    assert_equal(other.state, saved)
    assert jax.tree.map(lambda leaf: leaf.sharding, other.state) == other.shardings
    assert distance(other.train(SAVED, STEPS).state.params, expected) < 1e-5
    with Checkpointer(folder, CheckpointConfig(), read_only=True) as checkpoints:
        targets = with_shardings(other.abstract.params, other.shardings.params)
        assert_equal(checkpoints.restore_params(SAVED, targets)[0], saved.params)


@pytest.mark.parametrize("options", [REDLLM, T5GEMMA2, NGRAMS], ids=["redllm", "t5gemma2", "n-grams"])
def test_layers_beyond_t5(options: dict[str, Any]) -> None:
    """Fewer heads of keys than devices, windows, rotations, n-grams and scanned layers: the same as on one device."""
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2, "scan_layers": True}
    config = dataclasses.replace(MODEL.config, **options | layers)
    # normalised queries have gradients that are rounding alone: the least of them is no step
    alone, split = (
        Run(AdamW(0.003, epsilon=1e-4), layout, EncoderDecoderModel(config)).compile()
        for layout in (ALONE, FSDP_AND_TENSOR)
    )
    params = host(alone.create().state.params)
    if (table := params["token_embedder"].get("ngram_embedding")) is not None:
        table += np.random.default_rng(1).normal(size=table.shape).astype(np.float32)
    losses = [run.begin(params).train(0, 3).losses for run in (alone, split)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_a_run_that_continues_is_the_unbroken_run_bit_for_bit(runs, params, folder) -> None:
    run = runs["dropout"][FSDP_AND_TENSOR].begin(params)
    end = host(run.train(0, 2).save(folder, 2).train(2, 4).state)
    assert_equal(run.restore(folder, 2).train(2, 4).state, end)


@pytest.mark.parametrize(
    ("layout", "parts"),
    [(Layout(2, 4), [(32 // 4, 8), (8, 16 // 4), (16 // 4, 8)]), (FSDP, [(32, 8 // 8), (8 // 8, 16), (16, 8 // 8)])],
)
def test_a_new_state_is_the_same_on_every_mesh_and_split(params, layout, parts) -> None:
    """Of the embedding, wi_0 and wo; the statistics of wi_0 lie as it does."""
    state = Run(OPTIMIZERS["Adafactor"], layout).create().state
    assert distance(state.params, params) < 1e-6
    mlp, statistics = (tree["encoder"]["layers_0"]["mlp"] for tree in (state.params, state.opt_state[0].v))
    leaves = jax.tree.leaves([state.params["token_embedder"], mlp["wi_0"], mlp["wo"], statistics["wi_0"]])
    assert [leaf.addressable_shards[0].data.shape for leaf in leaves] == [*parts, parts[1]]


def test_fsdp_gathers_parameters_and_scatters_gradients(runs, params) -> None:
    """Of the compiled step: every matrix is gathered for each pass, and none is summed up whole."""
    found: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    program = runs["Adafactor"][FSDP].step.as_text()
    for result, kind in re.findall(r"= (\S.*?) (all-gather|all-reduce|reduce-scatter)\(", program):
        found[kind] += [tuple(map(int, sizes.split(","))) for sizes in re.findall(r"f32\[([\d,]+)\]", result)]
    axes = jax.tree.leaves(MODEL.logical_axes(), is_leaf=lambda node: isinstance(node, tuple))
    leaves = zip(jax.tree.leaves(params), axes, strict=True)
    matrices = [leaf.shape for leaf, names in leaves if leaf.ndim == 2 and "embed" in names]
    # for the forward and for the backward pass, which of the embedding needs nothing
    assert sum(shape in matrices for shape in found["all-gather"]) == 2 * len(matrices) - 1
    parts = {
        tuple(size // 8 if place == split else size for place, size in enumerate(shape))
        for shape in matrices
        for split in (0, 1)
        if shape[split] == 8
    }
    assert set(found["reduce-scatter"]) <= parts
    assert len(found["reduce-scatter"]) >= len(matrices)
    assert not set(matrices) & set(found["all-reduce"])


def test_evaluation_predictions_and_scores_agree(runs, params) -> None:
    """Over devices along "data", and along both axes with parameters that are gathered; the last rows are filled up."""
    rows = {name: np.where(np.arange(B)[:, None] < B - 3, array, 0) for name, array in batch(9).items()}
    dataset = DatasetConfig("none", {"inputs": S, "targets": T}, batch_size=B)
    evaluate = make_eval_step(MODEL, LossConfig(), token_bytes=TOKEN_BYTES)
    found = []
    for run in (runs["Adafactor"][layout] for layout in (ALONE, Layout(2, 4, 4), Layout(8, 1, 2), FSDP_AND_TENSOR)):
        on_devices = functools.partial(jax.device_put, device=batch_sharding(run.mesh))
        experiment = SimpleNamespace(
            model=MODEL, eval_dataset=dataset, decoding=DecodingConfig(), mesh=SimpleNamespace(rules=run.rules)
        )
        built: Any = SimpleNamespace(
            experiment=experiment, mesh=run.mesh, model_params_shardings=run.shardings.params, on_devices=on_devices
        )
        functions = model_outputs(built, Vocabulary())
        here = jax.device_put(params, run.shardings.params)
        sums = jit_eval_step(evaluate, run.mesh, run.shardings.params, 0, run.rules)(here, on_devices(batch(9)))
        measured = [float(sums[name]) for name in ("cross_entropy", "weights")]
        predicted = functions.predict(here, rows, np.arange(B, dtype=np.int32))
        found.append((measured, predicted, functions.score(here, rows)))
    (expected, predictions, scores), *others = found
    assert predictions.shape == (B, T)
    assert predictions.any()
    assert scores.any()
    for measured, predicted, scored in others:
        np.testing.assert_allclose(measured, expected, rtol=1e-5)
        np.testing.assert_array_equal(predicted, predictions)
        assert np.max(np.abs(scored - scores)) < 1e-5
