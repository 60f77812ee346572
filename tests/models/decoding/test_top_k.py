"""top_k and argmax against NumPy's and XLA's sorting, equal numbers included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.decoding.top_k import argmax, top_k_of_sums


def test_the_first_of_the_largest_logits_is_chosen() -> None:
    logits = np.random.default_rng(3).normal(size=(5, 23)).astype(np.float32)
    logits[1, [4, 9, 22]] = 7.0
    logits[2] = -np.inf
    got = argmax(jnp.asarray(logits))
    np.testing.assert_array_equal(got, np.argmax(logits, axis=-1))
    assert got.dtype == jnp.int32
    # an id of the vocabulary even where there is no largest
    logits[3, 5] = np.nan
    assert 0 <= int(argmax(jnp.asarray(logits))[3]) < 23


@pytest.mark.parametrize(
    ("beams", "vocabulary", "count"), [(1, 2, 2), (3, 9, 6), (4, 64, 8), (2, 500, 4), (5, 129, 10)]
)
def test_the_largest_sums_are_those_of_top_k(beams: int, vocabulary: int, count: int) -> None:
    rng = np.random.default_rng(vocabulary)
    logits = rng.integers(-4, 4, size=(3, beams, vocabulary)).astype(np.float32) / 4
    shifts = rng.integers(-2, 2, size=(3, beams, 1)).astype(np.float32) / 4
    shifts[0, 1:] = -1e9
    values, places = jax.jit(top_k_of_sums, static_argnums=2)(jnp.asarray(logits), jnp.asarray(shifts), count)
    expected = jax.lax.top_k(jnp.asarray((logits + shifts).reshape(3, -1)), count)
    np.testing.assert_array_equal(values, expected[0])
    np.testing.assert_array_equal(places, expected[1])
