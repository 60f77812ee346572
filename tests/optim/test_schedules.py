"""Schedules against their closed forms, in NumPy and in optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5xpg.optim.schedules import Constant, Cosine, InverseSquareRoot, Linear, WarmupStableDecay, as_schedule
from tests.refusals import refused

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


def test_traced_steps_and_strict_types():
    falling = (WarmupStableDecay(1.0, 50, 5, 2), InverseSquareRoot(), Cosine(1.0, 50, 5), Linear(1.0, 50, 5))
    for schedule in (*falling, Constant(1e-3), Constant(1e-3, 5)):
        with jax.numpy_dtype_promotion("strict"):
            traced, plain = jax.jit(schedule)(jnp.int32(7)), schedule(7)
        assert (traced.dtype, traced.shape) == (jnp.float32, ())
        np.testing.assert_allclose(traced, plain, rtol=1e-6)
        assert hash(schedule) is not None


def test_mistakes_are_named():
    for make, named in (
        (lambda: Cosine(1.0, 10, 10), "Cosine: total_steps is 10"),
        (lambda: Linear(1.0, 0), "Linear: total_steps"),
        (lambda: InverseSquareRoot(1.0, 0), "warmup_steps is 0"),
        (lambda: WarmupStableDecay(1.0, 100, 95, 10), "total_steps, 100"),
        (lambda: WarmupStableDecay(1.0, 100, 10, shape="cosine"), "WarmupStableDecay.shape is 'cosine'"),
        (lambda: Constant(1.0, -5), "Constant.warmup_steps is -5"),
        (lambda: WarmupStableDecay(1.0, 100, 10, final_fraction=-1.0), "WarmupStableDecay.peak * final_fraction"),
        (lambda: Cosine(1.0, 100, final_fraction=-1.0), "Cosine.peak * final_fraction"),
        (lambda: as_schedule("1e-3"), "learning_rate is '1e-3'"),
    ):
        with refused(named):
            make()
    for schedule in (Constant, lambda rate: Cosine(rate, 10), lambda rate: Linear(rate, 10), InverseSquareRoot):
        for rate in (-0.1, float("inf"), float("nan"), 1e39, 10**400):
            with refused("finite number of at least 0"):
                schedule(rate)
    assert float(as_schedule(0.5)(3)) == 0.5
