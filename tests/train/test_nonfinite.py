"""Updates that are not finite: found, named, kept, and passed over without a trace in the parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.losses import LossConfig
from t5xpg.optim.optimizers import Adafactor, AdamW, Optimizer
from t5xpg.optim.state import TrainState, of_parameters
from t5xpg.optim.step import make_train_step
from t5xpg.train import nonfinite
from tests.refusals import assert_named

V, B, S, T = 16, 4, 6, 5
MODEL = EncoderDecoderModel(
    T5Config(vocab_size=V, emb_dim=8, num_heads=2, head_dim=4, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=16)
)
PARAMS = MODEL.abstract_params()
NAMES = nonfinite.parameter_names(PARAMS)


def new_state(optimizer: Optimizer) -> TrainState:
    return of_parameters(MODEL, optimizer, MODEL.init(jax.random.key(0)))


def batch(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    targets = generator.integers(1, V, (B, T)).astype(np.int32)
    return {
        "encoder_input_tokens": generator.integers(1, V, (B, S)).astype(np.int32),
        "decoder_target_tokens": targets,
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
        "decoder_loss_weights": np.ones_like(targets),
    }


def broken(state: TrainState, name: str, value: float) -> TrainState:
    """The state with one value of a parameter set."""
    leaves, tree = jax.tree.flatten(state.params)
    place = NAMES.index(name)
    leaves[place] = leaves[place].at[(0,) * leaves[place].ndim].set(value)
    return TrainState(state.step, jax.tree.unflatten(tree, leaves), state.opt_state)


@functools.cache
def step_of(optimizer: Adafactor | AdamW, skip: bool):
    return jax.jit(
        make_train_step(MODEL, optimizer, LossConfig(), skip_nonfinite=skip, seed=0, token_bytes=np.ones(V, np.int32))
    )


def test_squares_are_those_of_the_gradients_and_make_up_the_norm() -> None:
    optimizer = AdamW(0.1)
    state = new_state(optimizer)
    _, metrics = step_of(optimizer, False)(state, batch(0))
    squares = np.asarray(metrics["gradient_squares"])
    assert squares.shape == (len(NAMES),)
    assert float(metrics["gradient_norm"]) == pytest.approx(float(np.sqrt(squares.sum())), rel=1e-6)
    assert nonfinite.find(1, jax.device_get(metrics), PARAMS) is None


def test_what_is_not_finite_is_named() -> None:
    optimizer = AdamW(0.1)
    state = broken(new_state(optimizer), "decoder/logits_dense/kernel", -np.inf)
    _, metrics = step_of(optimizer, False)(state, batch(0))
    found = nonfinite.find(3, jax.device_get(metrics), PARAMS)
    assert found is not None
    assert "decoder/logits_dense/kernel" in found.parameters
    assert_named(str(found), ["cross entropy", "gradient norm", "step 3"])


def test_one_gradient_alone_is_named_alone() -> None:
    squares = np.ones(len(NAMES), np.float32)
    squares[NAMES.index("encoder/layers_0/mlp/wo/kernel")] = np.inf
    found = nonfinite.find(9, {"cross_entropy": 1.0, "gradient_norm": np.inf, "gradient_squares": squares}, PARAMS)
    assert found is not None
    assert_named(str(found), ["gradient norm", "step 9"])
    assert found.where() == "gradients of encoder/layers_0/mlp/wo/kernel"


@pytest.mark.parametrize("optimizer", [AdamW(0.1), Adafactor(0.1)])
def test_a_skipped_update_changes_counts_alone(optimizer: Adafactor | AdamW) -> None:
    update = step_of(optimizer, True)
    good, _ = update(new_state(optimizer), batch(0))
    bad = broken(good, "encoder/encoder_norm/scale", np.nan)
    after, metrics = update(bad, batch(1))
    assert not np.isfinite(metrics["gradient_norm"])
    assert int(after.step) == int(bad.step) + 1
    for new, old in zip(
        jax.tree.leaves((after.params, after.opt_state)), jax.tree.leaves((bad.params, bad.opt_state)), strict=True
    ):
        counts = jnp.issubdtype(old.dtype, jnp.integer)  # of the schedule, whose rate is recorded by the step
        np.testing.assert_array_equal(new, old + 1 if counts else old)


def test_skipping_changes_nothing_where_all_is_finite() -> None:
    optimizer = AdamW(0.1)
    state = new_state(optimizer)
    with_it, without = step_of(optimizer, True), step_of(optimizer, False)
    for ours, theirs in zip(
        jax.tree.leaves(with_it(state, batch(0))), jax.tree.leaves(without(state, batch(0))), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_parameters_that_are_not_finite_are_named() -> None:
    state = new_state(AdamW(0.1))
    assert nonfinite.nonfinite_parameters(state.params) == []
    for name, value in (("encoder/layers_0/mlp/wo/kernel", jnp.nan), ("decoder/decoder_norm/scale", -jnp.inf)):
        assert nonfinite.nonfinite_parameters(broken(state, name, value).params) == [name]
    # finite, though its square is not
    assert nonfinite.nonfinite_parameters(broken(state, NAMES[0], 3e38).params) == []
