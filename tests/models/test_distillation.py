"""Learning from a teacher: the divergence, the loss with it, and who can teach whom."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.experiment import config
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.distillation import Teacher
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.losses import LossConfig, loss_and_metrics
from t5xpg.optim import state as state_lib
from t5xpg.optim.optimizers import AdamW
from t5xpg.optim.step import make_train_step
from tests.refusals import refused
from tests.small_models import ONE_LAYER, SIZES, seq2seq
from tests.workplace import EXPERIMENT

V = 24
TOKEN_BYTES = np.ones(V, np.int32)
CONFIG = T5Config(**(SIZES | ONE_LAYER | {"vocab_size": V}))
INCLUDE = "include 'gin/runs/distillation.gin'\nTEACHER_CHECKPOINT = 'small'\n"


def reference(teacher: np.ndarray, student: np.ndarray, temperature: float) -> np.ndarray:
    """KL(teacher || student) of the definition, in float64."""
    p, q = (np.exp(logits / temperature) for logits in (teacher.astype(np.float64), student.astype(np.float64)))
    p, q = (each / each.sum(-1, keepdims=True) for each in (p, q))
    return (p * np.log(p / q)).sum(-1)


def batch_of(rows: int) -> dict[str, jax.Array]:
    draw = np.random.default_rng(1)
    targets = draw.integers(1, V, (rows, 5)) * (np.arange(5) < draw.integers(1, 6, (rows, 1)))
    return {name: jnp.asarray(array) for name, array in seq2seq(draw.integers(1, V, (rows, 6)), targets).items()}


def updated(student: EncoderDecoderModel, teacher: Teacher) -> tuple[Any, dict[str, Any]]:
    """The state after an update from new parameters, in two parts, and its metrics."""
    optimizer = AdamW(0.01)
    begun = state_lib.of_parameters(student, optimizer, student.init(jax.random.key(0)))
    state = dataclasses.replace(begun, frozen=teacher.model.init(jax.random.key(1)))
    update = make_train_step(
        student, optimizer, LossConfig(), num_microbatches=2, teacher=teacher, seed=0, token_bytes=TOKEN_BYTES
    )
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam divides by float ** int
        return jax.jit(update)(state, batch_of(4))


def test_an_update_is_on_both_losses_and_leaves_the_teacher() -> None:
    """The larger teacher is applied without dropout, which it would have for itself."""
    student = EncoderDecoderModel(CONFIG)
    larger = EncoderDecoderModel(dataclasses.replace(CONFIG, num_decoder_layers=2, dropout_rate=0.3))
    teacher = Teacher("larger", larger, weight=0.75, temperature=2.0)
    batch, ours = batch_of(4), student.init(jax.random.key(0))
    theirs = larger.init(jax.random.key(1))
    logits, weights = jax.jit(student.logits)(ours, batch), np.asarray(batch["decoder_target_tokens"]) > 0
    own, _ = loss_and_metrics(logits, batch, LossConfig(), TOKEN_BYTES)
    pair = np.asarray(jax.jit(larger.logits)(theirs, batch)), np.asarray(logits)
    soft = (reference(*pair, 2.0) * weights).sum()
    whole = 0.25 * float(own) + 0.75 * 4.0 * soft / weights.sum()

    after, metrics = updated(student, teacher)
    assert float(metrics["loss"]) == pytest.approx(whole, rel=1e-5)
    assert float(metrics["teacher_divergence"]) == pytest.approx(soft, rel=1e-5)
    assert jax.tree.all(jax.tree.map(np.array_equal, after.frozen, theirs))

    def alone(params: Any) -> jax.Array:
        """The same loss as one formula."""
        logits = student.logits(params, batch)
        plain, _ = loss_and_metrics(logits, batch, LossConfig(), TOKEN_BYTES)
        p, q = (jax.nn.softmax(each / 2.0) for each in (jnp.asarray(pair[0]), logits))
        share = jnp.sum(jnp.sum(p * (jnp.log(p) - jnp.log(q)), -1) * weights.astype(np.float32))
        return 0.25 * plain + 0.75 * 4.0 * share / weights.sum().astype(np.float32)

    squares = [np.sum(np.float64(leaf) ** 2) for leaf in jax.tree.leaves(jax.jit(jax.grad(alone))(ours))]
    np.testing.assert_allclose(metrics["gradient_squares"], squares, rtol=2e-4, atol=1e-9)


def test_a_teacher_of_something_else_is_refused(tmp_path: Any) -> None:
    for overrides, named in (
        (("DISTILLATION_WEIGHT=0.0",), "DISTILLATION_WEIGHT is 0.0"),
        (("DISTILLATION_TEMPERATURE=0.0",), "DISTILLATION_TEMPERATURE is 0.0"),
        (("TEACHER_CHECKPOINT=' '",), "TEACHER_CHECKPOINT is ' '"),
        (("teacher/encoder_decoder.T5Config.vocab_size=400",), "400 ids"),
        (("PACK=True", "teacher/encoder_decoder.T5Config.prompt_tokens=3"), "prompt"),
    ):
        gin = tmp_path / "student.gin"
        gin.write_text(EXPERIMENT + INCLUDE)
        with refused(named):
            config.load(str(gin), overrides)


def test_a_teacher_reads_the_batches_of_the_student() -> None:
    student, teacher = EncoderDecoderModel(CONFIG), Teacher("lm", DecoderOnlyModel(CONFIG))
    with refused("DecoderOnlyModel", "LMFeatureConverter"):
        teacher.check(student, "EncDecFeatureConverter")
    teacher.check(DecoderOnlyModel(CONFIG), "PrefixLMFeatureConverter")


def test_what_a_teacher_has_otherwise_is_said_in_its_scope(tmp_path: Any) -> None:
    gin = tmp_path / "student.gin"
    gin.write_text(EXPERIMENT + INCLUDE)
    experiment = config.load(str(gin), ("teacher/encoder_decoder.T5Config.num_decoder_layers=3",)).experiment
    assert experiment.teacher is not None
    layers = experiment.model.config.num_decoder_layers, experiment.teacher.model.config.num_decoder_layers
    assert layers == (1, 3)
    assert experiment.teacher.model.config.emb_dim == experiment.model.config.emb_dim
    ours, theirs = (
        model.flops_per_example(experiment.lengths) for model in (experiment.model, experiment.teacher.model)
    )
    assert experiment.flops_per_example(experiment.lengths) == ours + theirs / 3
