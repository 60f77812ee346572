"""Schedules against their closed forms in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.optim.schedules import Constant, Cosine, InverseSquareRoot, Linear, WarmupStableDecay, as_schedule
from tests.refusals import refused

STEPS = np.array([0, 1, 2, 9, 10, 11, 50, 99, 100, 101, 5000])

WARMUP = np.minimum(1, STEPS / 10)


def since(step: int) -> np.ndarray:
    """The share of the way from `step` to the last of 100."""
    return np.clip((STEPS - step) / (100 - step), 0, 1)


@pytest.mark.parametrize(
    ("schedule", "expected", "rtol"),
    [
        (Constant(0.25), np.full(STEPS.shape, 0.25), 1e-7),
        (Constant(0.25, 10), 0.25 * WARMUP, 1e-6),
        (InverseSquareRoot(), 1 / np.sqrt(np.maximum(STEPS, 10_000)), 1e-6),
        (InverseSquareRoot(0.5, 10, True), np.maximum(0.5 * WARMUP / np.sqrt(np.maximum(STEPS, 10)), 1e-8), 1e-6),
        (Cosine(0.02, 100, 10, 0.1), 0.02 * WARMUP * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * since(10)))), 1e-5),
        (Linear(0.02, 100, 10, 0.25), 0.02 * WARMUP * (1 - 0.75 * since(10)), 1e-5),
        (WarmupStableDecay(0.02, 100, 50, 10, 0.1, "sqrt"), 0.02 * WARMUP * (1 - 0.9 * np.sqrt(since(50))), 1e-5),
        (WarmupStableDecay(0.02, 100, 50, 10, 0.1, "linear"), 0.02 * WARMUP * (1 - 0.9 * since(50)), 1e-5),
    ],
)
def test_rates(schedule, expected, rtol):
    np.testing.assert_allclose([schedule(int(step)) for step in STEPS], expected, rtol)


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
