"""The state of an experiment, however it is made."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh

from t5xpg import distributed
from t5xpg.base.paths import EXPERIMENTS
from t5xpg.experiment import assembly, config
from t5xpg.models.rng import stream_key
from t5xpg.optim import state
from tests.refusals import refused


def test_parameters_made_one_by_one_are_those_of_one_program() -> None:
    overrides = [
        "encoder_decoder.T5Config.emb_dim=48",
        "encoder_decoder.T5Config.num_encoder_layers=1",
        "encoder_decoder.T5Config.num_decoder_layers=1",
        "RANDOM_SEED=3",
        "EMA_DECAY=None",
    ]
    experiment = config.load(str(Path(EXPERIMENTS) / "byt5_tiny" / "byt5_tiny.gin"), overrides).experiment
    built = assembly.assemble(experiment)
    key, optimizer = stream_key(experiment.random_seed, "parameters"), experiment.optimizer
    create = lambda: state.of_parameters(experiment.model, optimizer, experiment.model.init(key))  # noqa: E731
    whole = distributed.jit_create(create, built.shardings)
    parts = built.new_state()
    assert jax.tree.structure(parts) == jax.tree.structure(whole)
    for one, other in zip(jax.tree.leaves(parts), jax.tree.leaves(whole), strict=True):
        assert one.sharding == other.sharding
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


SMALL = [
    "encoder_decoder.T5Config.emb_dim=16",
    "encoder_decoder.T5Config.num_heads=2",
    "encoder_decoder.T5Config.head_dim=8",
    "encoder_decoder.T5Config.mlp_dim=32",
    "encoder_decoder.T5Config.num_encoder_layers=1",
    "encoder_decoder.T5Config.num_decoder_layers=1",
    "DROPOUT_RATE=0.0",
    "TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 20}",
    "BATCH_SIZE=4",
]


def test_each_batch_is_given_to_the_program_of_its_length_bucket() -> None:
    """The sums of a short batch are those of its halves, padded to the longest bucket."""
    experiment = config.load("byt5_tiny", [*SMALL, "LENGTH_BUCKETS=(16, 32)"]).experiment
    built = assembly.assemble(experiment)
    update, token_bytes = built.compile_train_steps(), np.ones(experiment.model.config.vocab_size, np.int32)
    draw = np.random.default_rng(0)
    features = experiment.train_dataset.buckets[16].batch_spec().features()
    short = {name: draw.integers(1, 300, shape, dtype) for name, (shape, dtype) in features.items()}
    short["decoder_loss_weights"][:] = 1
    assert short["encoder_input_tokens"].shape == (8, 16)

    def sums(batch: dict[str, np.ndarray]) -> tuple[float, float]:
        _, metrics = update(built.new_state(), built.on_devices(batch), token_bytes)
        return float(metrics["cross_entropy"]), float(metrics["weights"])

    halves = []
    for rows in (slice(0, 4), slice(4, 8)):
        own = {name: array[rows] for name, array in short.items()}
        halves.append(
            sums({n: np.pad(a, ((0, 0), (0, (32 if n.startswith("encoder") else 20) - 16))) for n, a in own.items()})
        )
    np.testing.assert_allclose(sums(short), np.sum(halves, axis=0), rtol=1e-5)


def test_batches_of_length_buckets_have_to_divide() -> None:
    overrides = [*SMALL, "BATCH_SIZE=16", "LENGTH_BUCKETS=(20, 32)", "NUM_MICROBATCHES=16"]
    with refused("20 tokens", "24 rows", "16 microbatches"):
        assembly.assemble(config.load("byt5_tiny", overrides).experiment)
    uneven = config.load("byt5_tiny", [*SMALL, "BATCH_SIZE=8", "train_eval/spec.DatasetConfig.batch_size=6"])
    mesh: Any = AbstractMesh((4, 1), ("data", "model"))
    with refused("evaluation, 6 rows", "4 data-parallel devices"):
        assembly.check_batches(uneven.experiment, mesh)
    for binding, named in (("num_epochs=None", "evaluation"), ("length_buckets=(16, 32)", "LENGTH_BUCKETS")):
        with refused(named):
            config.load("byt5_tiny", [*SMALL, f"train_eval/spec.DatasetConfig.{binding}"])


def test_a_state_to_time_has_a_teacher() -> None:
    overrides = [*SMALL, "TEACHER_CHECKPOINT=not_trained"]
    experiment = config.load("byt5_tiny", overrides, ["gin/runs/distillation.gin"]).experiment
    built = assembly.assemble(experiment)
    begun = built.state_to_time()
    assert jax.tree.map(np.shape, begun) == jax.tree.map(np.shape, built.abstract_state)
    batch = {
        name: np.ones(one.shape, one.dtype) for name, one in assembly.abstract_batch(experiment.train_dataset).items()
    }
    token_bytes = np.ones(experiment.model.config.vocab_size, np.int32)
    _, metrics = built.compile_train_step()(begun, built.on_devices(batch), token_bytes)
    assert float(metrics["teacher_divergence"]) > 0
