"""What a run takes over from a checkpoint, and what is said of one that does not fit."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from t5xpg.base.errors import UserError
from t5xpg.check.start_checks import start_findings
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.trained_model import INITIAL, TEACHER, frozen_parameters
from t5xpg.experiment import assembly, config
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.config import settings
from t5xpg.optim.state import TrainState
from t5xpg.run.checkpoint.checkpoint_items import optimizer_tree, sha256_of_arrays
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from t5xpg.run.checkpoint.initial_checkpoint import SavedStep
from t5xpg.run.directory import RunDirectory
from t5xpg.train import initial_state
from tests.refusals import assert_named, refused
from tests.workplace import EXPERIMENT, FINE_TUNING

STEP = 5
VOCABULARY = Vocabulary().to_json()


def save(run: Path, built: Assembly, state: TrainState) -> None:
    meta = {"experiment": run.name, "vocabulary": VOCABULARY, "settings": settings(built.experiment.model)}
    with Checkpointer(run / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(STEP, state, {}, meta)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainState]:
    """The folder of runs, with one of the common experiment, and its state: as after 5 updates."""
    folder = tmp_path_factory.mktemp("runs")
    gin = folder.parent / "small.gin"
    gin.write_text(EXPERIMENT)
    built = assembly.assemble(config.load(str(gin)).experiment)
    draw = np.random.default_rng(1)

    def other(leaf: jax.Array) -> jax.Array:
        floats = np.issubdtype(leaf.dtype, np.floating)
        numbers = draw.normal(size=leaf.shape).astype(leaf.dtype) if floats else np.full(leaf.shape, STEP, leaf.dtype)
        return jax.device_put(numbers, leaf.sharding)

    state = jax.tree.map(other, built.new_state())
    save(folder / "small", built, state)
    return folder, state


@pytest.fixture
def build(trained: tuple[Path, TrainState], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(trained[0]))

    def built(*overrides: str, files: tuple[str, ...] = ()) -> Assembly:
        gin = tmp_path / "tuned.gin"
        gin.write_text(FINE_TUNING)
        return assembly.assemble(config.load(str(gin), overrides, files).experiment)

    return built


def same(ours: Any, theirs: Any) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True))


def test_the_parameters_alone(trained: tuple[Path, TrainState], build: Any) -> None:
    built, state = build(), trained[1]
    start = initial_state.begin(built)
    assert same(start.state.params, state.params)
    assert int(start.state.step) == 0
    assert same(start.state.opt_state, built.new_state().opt_state)
    digest = sha256_of_arrays({"params": state.params})
    assert start.origins[INITIAL] == {"named": "small", "experiment": "small", "step": STEP, "sha256": digest}
    assert initial_state.identity(start.origins[INITIAL]) == {"experiment": "small", "step": STEP, "sha256": digest}
    assert start.vocabularies == {INITIAL: VOCABULARY}
    # what does not change what parameters mean
    other = build("DROPOUT_RATE=0.5", "DTYPE=bfloat16", "ATTENTION_CHUNK_SIZE=16")
    assert initial_state.begin(other).origins == start.origins


def test_the_optimiser_goes_on(trained: tuple[Path, TrainState], build: Any) -> None:
    state = trained[1]
    start = initial_state.begin(build("RESET_OPTIMIZER=False", "INITIAL_CHECKPOINT=small/checkpoints/5"))
    assert same(start.state, state)
    assert int(start.state.step) == STEP
    both = {"params": state.params, "optimizer": optimizer_tree(state)}
    assert start.origins[INITIAL]["sha256"] == sha256_of_arrays(both)


def test_the_digest_is_of_names_and_values_alone() -> None:
    one = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": {"c": np.int32(1)}}
    assert sha256_of_arrays(one) == sha256_of_arrays(jax.tree.map(jax.numpy.asarray, dict(reversed(one.items()))))
    for other in ({**one, "a": one["a"].reshape(3, 2)}, {**one, "b": {"d": np.int32(1)}}, {**one, "b": {"c": 1.0}}):
        assert sha256_of_arrays(jax.tree.map(np.asarray, other)) != sha256_of_arrays(one)


MISFITS = {
    ("encoder_decoder.T5Config.num_decoder_layers=2",): (
        "T5Config.num_decoder_layers 1", "params/decoder/layers_1/mlp/wi_0/kernel", "float32[32, 64]",
    ),
    ("encoder_decoder.T5Config.logits_via_embedding=True",): ("params/decoder/logits_dense/kernel", "float32[32, 384]"),
    ("VOCAB_SIZE=512",): (
        "params/token_embedder/embedding", "float32[384, 32]", "float32[512, 32]", "VOCAB_SIZE=384",
        "VOCAB_SIZE_MULTIPLE=1",
    ),
    # the same shapes, and other attention
    ("encoder_decoder.T5Config.num_heads=1", "encoder_decoder.T5Config.head_dim=32"): (
        "T5Config.num_heads 2", "T5Config.head_dim 16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("overrides", MISFITS)
def test_a_checkpoint_of_another_model(build: Any, overrides: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        initial_state.begin(build(*overrides))
    assert_named(str(caught.value), ["small/checkpoints/5", *MISFITS[overrides]])
    assert ("VOCAB_SIZE=384" in str(caught.value)) == (overrides == ("VOCAB_SIZE=512",))


def test_the_rows_of_ngrams_are_not_those_of_the_vocabulary(trained: tuple[Path, TrainState], build: Any) -> None:
    ngrams = (
        "encoder_decoder.T5Config.embeddings=@parts.Ngrams()",
        "parts.Ngrams.lengths=(2,)",
        "parts.Ngrams.buckets=16",
    )
    built = build(*ngrams)
    save(trained[0] / "ngrams", built, built.new_state())
    with refused("VOCAB_SIZE=384"):
        initial_state.begin(build(*ngrams, "INITIAL_CHECKPOINT=ngrams", "VOCAB_SIZE=512"))


def test_an_optimiser_of_another_kind(build: Any) -> None:
    files = ("gin/optimizers/adafactor.gin",)
    with refused("RESET_OPTIMIZER=True"):
        initial_state.begin(build("RESET_OPTIMIZER=False", files=files))
    initial_state.begin(build(files=files))


def test_a_decoder_alone(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = ("gin/architectures/decoder_only.gin",)
    before = build("TASK_FEATURE_LENGTHS={'targets': 64}", files=alone)
    state = before.new_state()
    save(tmp_path / "decoder", before, state)
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(tmp_path))
    named = "INITIAL_CHECKPOINT=decoder"
    with refused("ADAPT_DECODER=True"):
        initial_state.begin(build(named))
    causal = "decoder_only.DecoderOnlyModel.inputs_bidirectional_attention=False"
    assert initial_state.begin(build(named, "TASK_FEATURE_LENGTHS={'targets': 64}", causal, files=alone)).origins
    wider = build(named, "TASK_FEATURE_LENGTHS={'targets': 64}", "encoder_decoder.T5Config.mlp_dim=24", files=alone)
    with refused("T5Config.mlp_dim"):
        initial_state.begin(wider)
    teaching = ("experiment.Experiment.initial=None", "TEACHER_CHECKPOINT=decoder")
    taught = build(*teaching, files=("gin/runs/distillation.gin",))
    with refused("TEACHER_CHECKPOINT"):
        initial_state.begin(taught)
    built = build(named, "ADAPT_DECODER=True", "parts.Embeddings.shared=False")
    start = initial_state.begin(built)
    assert jax.tree.map(np.shape, start.state.params) == jax.tree.map(np.shape, built.abstract_state.params)
    assert same(start.state.params["decoder_token_embedder"], state.params["token_embedder"])
    assert start.origins[INITIAL]["sha256"] == sha256_of_arrays({"params": state.params})
    with refused("ADAPT_DECODER"):
        build(named, "ADAPT_DECODER=True", "RESET_OPTIMIZER=False")


def test_a_teacher(trained: tuple[Path, TrainState], build: Any, tmp_path: Path) -> None:
    """It lies beside a state that is as without it; on the page of `make check`, and refused where it does not fit."""
    alone, teaching = ("experiment.Experiment.initial=None",), ("gin/runs/distillation.gin",)
    taught = (*alone, "TEACHER_CHECKPOINT=small")
    smaller = (*taught, "encoder_decoder.T5Config.mlp_dim=16", "teacher/encoder_decoder.T5Config.mlp_dim=64")
    built = build(*smaller, files=teaching)
    start = initial_state.begin(built)
    plain = build(*alone, "encoder_decoder.T5Config.mlp_dim=16").new_state()
    assert same(dataclasses.replace(start.state, frozen=None), plain)
    assert same(start.state.frozen, trained[1].params)
    digest = sha256_of_arrays({"params": trained[1].params})
    assert start.origins == {TEACHER: {"named": "small", "experiment": "small", "step": STEP, "sha256": digest}}
    assert same(frozen_parameters(built, start.origins[TEACHER]), trained[1].params)
    other = {**start.origins[TEACHER], "sha256": "0" * 64}
    with refused("TEACHER_CHECKPOINT=small"):
        frozen_parameters(built, other)
    loaded = config.load(str(tmp_path / "tuned.gin"), smaller[:-1], teaching)
    (said,) = start_findings(loaded, RunDirectory(tmp_path / "tuned"), None, data=False)
    assert said.problem
    named = ["mlp/wi_0/kernel", "float32[32, 64]", "float32[32, 16]", "teacher/encoder_decoder.T5Config"]
    assert_named(said.text, named)
    with refused("TEACHER_CHECKPOINT", "/smal"):
        initial_state.begin(build(*alone, "TEACHER_CHECKPOINT=smal", files=teaching))
    goes_on = ("RESET_OPTIMIZER=False", "optimizers.Adafactor.step_offset=5", "TEACHER_CHECKPOINT=small")
    built_on = build(*goes_on, files=("gin/optimizers/adafactor.gin", *teaching))
    place = SavedStep(trained[0] / "small", STEP)
    found = initial_state.require_teacher_fits(place, built_on.experiment, built_on.abstract_state)
    assert found["experiment"] == "small"
    with refused("teacher small", "vocabulary"):
        initial_state.require_vocabulary(
            Vocabulary(sentinels="transformers"), VOCABULARY, built.experiment, of_teacher=True
        )


def test_a_schedule_that_has_come_to_its_end(build: Any) -> None:
    cosine = ("RESET_OPTIMIZER=False", "SCHEDULE=@schedules.Cosine()", "TRAIN_STEPS=4", "WARMUP_STEPS=1")
    with refused("step 5", "learning rate is 0 at step 7"):
        initial_state.begin(build(*cosine))
    initial_state.begin(build(*cosine[1:]))


def test_another_vocabulary(build: Any) -> None:
    experiment = build().experiment
    initial_state.require_vocabulary(Vocabulary(), VOCABULARY, experiment)
    other = Vocabulary(sentinels="transformers")
    with refused("sentinels seqio", "transformers", "SAME_VOCABULARY=False"):
        initial_state.require_vocabulary(other, VOCABULARY, experiment)
    initial_state.require_vocabulary(other, VOCABULARY, build("SAME_VOCABULARY=False").experiment)


def test_a_run_that_goes_on_keeps_the_name_of_its_initial_checkpoint(build: Any) -> None:
    recorded = {"named": "gone", "experiment": "small", "step": STEP, "sha256": ""}
    initial_state.require_same_origin(recorded, build("INITIAL_CHECKPOINT=gone").experiment)
    with refused("INITIAL_CHECKPOINT", "'gone'"):
        initial_state.require_same_origin(recorded, build().experiment)
    with refused("INITIAL_CHECKPOINT", "None"):
        initial_state.require_same_origin(None, build().experiment)
    initial_state.require_same_origin(recorded, build(files=("gin/adapters/lora.gin",)).experiment)
