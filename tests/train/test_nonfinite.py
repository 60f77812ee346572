"""Updates that are not finite: found, named, kept, and passed over without a trace in the parameters."""

import functools
from typing import Any

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
from tests.small_models import ONE_LAYER, SIZES, seq2seq

V, B, S, T = 16, 4, 6, 5
MODEL = EncoderDecoderModel(T5Config(**{**SIZES, **ONE_LAYER, "vocab_size": V}))
PARAMS = MODEL.abstract_params()
NAMES = nonfinite.parameter_names(PARAMS)


def new_state(optimizer: Optimizer) -> TrainState:
    return of_parameters(MODEL, optimizer, MODEL.init(jax.random.key(0)))


def batch(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    inputs, targets = (generator.integers(1, V, (B, length)).astype(np.int32) for length in (S, T))
    return seq2seq(inputs, targets) | {"decoder_loss_weights": np.ones_like(targets)}


def assert_same(ours: Any, theirs: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


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


def test_what_is_not_finite_is_named() -> None:
    optimizer = AdamW(0.1)
    state = broken(new_state(optimizer), "decoder/logits_dense/kernel", -np.inf)
    _, metrics = step_of(optimizer, False)(state, batch(0))
    found = nonfinite.find(3, jax.device_get(metrics), PARAMS)
    assert found is not None
    assert "decoder/logits_dense/kernel" in found.parameters
    assert_named(str(found), ["cross entropy", "gradient norm", "step 3"])
    # one gradient alone
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
    # counts are those of the schedule, whose rate is recorded by the step
    expected = jax.tree.map(lambda old: old + jnp.issubdtype(old.dtype, jnp.integer), bad.opt_state)
    assert_same((after.params, after.opt_state), (bad.params, expected))


def test_skipping_changes_nothing_where_all_is_finite() -> None:
    optimizer = AdamW(0.1)
    state = new_state(optimizer)
    assert_same(step_of(optimizer, True)(state, batch(0)), step_of(optimizer, False)(state, batch(0)))


def test_parameters_that_are_not_finite_are_named() -> None:
    state = new_state(AdamW(0.1))
    assert nonfinite.nonfinite_parameters(state.params) == []
    for name, value in (("encoder/layers_0/mlp/wo/kernel", jnp.nan), ("decoder/decoder_norm/scale", -jnp.inf)):
        assert nonfinite.nonfinite_parameters(broken(state, name, value).params) == [name]
    # finite, though its square is not
    assert nonfinite.nonfinite_parameters(broken(state, NAMES[0], 3e38).params) == []
