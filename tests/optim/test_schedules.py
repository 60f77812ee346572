"""Schedules against their closed forms, in NumPy and in optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5xpg.base.errors import UserError
from t5xpg.optim.schedules import Constant, Cosine, InverseSquareRoot, Linear, WarmupStableDecay, as_schedule

STEPS = np.array([0, 1, 2, 9, 10, 11, 50, 99, 100, 101, 5000])


def rates(schedule) -> np.ndarray:
    return np.array([schedule(int(step)) for step in STEPS])


def test_constant():
    np.testing.assert_allclose(rates(Constant(0.25)), 0.25, rtol=1e-7)
    np.testing.assert_allclose(rates(Constant(0.25, warmup_steps=10)), 0.25 * np.minimum(1, STEPS / 10), rtol=1e-6)


def test_inverse_square_root():
    expected = 1 / np.sqrt(np.maximum(STEPS, 10_000))
    np.testing.assert_allclose(rates(InverseSquareRoot()), expected, rtol=1e-6)
    expected = 0.5 * np.minimum(1, STEPS / 10) / np.sqrt(np.maximum(STEPS, 10))
    schedule = InverseSquareRoot(0.5, warmup_steps=10, linear_warmup=True)
    np.testing.assert_allclose(rates(schedule), np.maximum(expected, 1e-8), rtol=1e-6)


def test_cosine():
    schedule = Cosine(0.02, total_steps=100, warmup_steps=10, final_fraction=0.1)
    progress = np.clip((STEPS - 10) / 90, 0, 1)
    expected = 0.02 * np.minimum(1, STEPS / 10) * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * progress)))
    np.testing.assert_allclose(rates(schedule), expected, rtol=1e-5, atol=1e-9)
    theirs = optax.warmup_cosine_decay_schedule(0.0, 0.02, 10, 100, 0.002)
    np.testing.assert_allclose(rates(schedule), rates(theirs), rtol=1e-5, atol=1e-9)


def test_linear():
    schedule = Linear(0.02, total_steps=100, warmup_steps=10, final_fraction=0.25)
    expected = 0.02 * np.minimum(1, STEPS / 10) * (1 - 0.75 * np.clip((STEPS - 10) / 90, 0, 1))
    np.testing.assert_allclose(rates(schedule), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("shape", ["sqrt", "linear"])
def test_warmup_stable_decay(shape: str) -> None:
    schedule = WarmupStableDecay(
        0.02, total_steps=100, decay_steps=50, warmup_steps=10, final_fraction=0.1, shape=shape
    )
    progress = np.clip((STEPS - 50) / 50, 0, 1)
    fall = 1 - (np.sqrt(progress) if shape == "sqrt" else progress)
    np.testing.assert_allclose(rates(schedule), 0.02 * np.minimum(1, STEPS / 10) * (0.1 + 0.9 * fall), rtol=1e-5)


@pytest.mark.parametrize(
    "schedule",
    [
        WarmupStableDecay(1.0, 50, 5, 2),
        Constant(1e-3),
        Constant(1e-3, 5),
        InverseSquareRoot(),
        Cosine(1.0, 50, 5),
        Linear(1.0, 50, 5),
    ],
)
def test_traced_steps_and_strict_types(schedule):
    with jax.numpy_dtype_promotion("strict"):
        traced = jax.jit(schedule)(jnp.int32(7))
        plain = schedule(7)
    assert traced.dtype == jnp.float32
    assert traced.shape == ()
    np.testing.assert_allclose(traced, plain, rtol=1e-6)
    assert hash(schedule) is not None


def test_mistakes_are_named():
    with pytest.raises(UserError, match=r"Cosine: total_steps is 10 and warmup_steps is 10"):
        Cosine(1.0, 10, 10)
    with pytest.raises(UserError, match="Linear: total_steps"):
        Linear(1.0, 0)
    with pytest.raises(UserError, match="warmup_steps is 0"):
        InverseSquareRoot(1.0, 0)
    with pytest.raises(UserError, match="10 steps of warmup and 95 of decay do not fit into total_steps, 100"):
        WarmupStableDecay(1.0, 100, 95, 10)
    with pytest.raises(UserError, match=r"WarmupStableDecay\.shape is 'cosine'"):
        WarmupStableDecay(1.0, 100, 10, shape="cosine")
    with pytest.raises(UserError, match=r"Constant\.warmup_steps is -5"):
        Constant(1.0, -5)
    with pytest.raises(UserError, match=r"WarmupStableDecay.peak \* final_fraction is -1.0; a learning rate is a"):
        WarmupStableDecay(1.0, 100, 10, final_fraction=-1.0)
    with pytest.raises(UserError, match=r"Cosine.peak \* final_fraction is -1.0; a learning rate is a"):
        Cosine(1.0, 100, final_fraction=-1.0)
    for schedule in (Constant, lambda rate: Cosine(rate, 10), lambda rate: Linear(rate, 10), InverseSquareRoot):
        for rate in (-0.1, float("inf"), float("nan"), 1e39, 10**400):
            with pytest.raises(UserError, match="a learning rate is a finite number of at least 0"):
                schedule(rate)
    with pytest.raises(UserError, match="learning_rate is '1e-3'"):
        as_schedule("1e-3")
    assert float(as_schedule(0.5)(3)) == 0.5
