"""Greedy decoding against the largest of each step's logits, row by row; transformers': exchange/test_importing.py."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5xpg.models.decoding import greedy
from tests.models.decoding.automaton import END, Automaton, log_probabilities, rows, table

LENGTH = 9


def search(params: np.ndarray, inputs: np.ndarray, **options: Any) -> np.ndarray:
    decode = jax.jit(functools.partial(greedy, Automaton(), max_decode_length=LENGTH, **options))
    return np.asarray(decode(jnp.asarray(params), jnp.asarray(inputs)))


def test_each_token_is_the_likeliest() -> None:
    params, inputs = table(2, end=2.0), rows(8)
    found = search(params, inputs)
    assert found.dtype == np.int32
    lengths = set()
    for row in range(8):
        expected: list[int] = []
        while len(expected) < LENGTH and END not in expected:
            expected.append(int(np.argmax(log_probabilities(params, inputs[row], expected))))
        np.testing.assert_array_equal(found[row], np.pad(expected, (0, LENGTH - len(expected))))
        lengths.add(len(expected))
    assert len(lengths) > 1


def test_it_stops_when_all_rows_have_ended() -> None:
    found = search(np.zeros_like(table(0)) + 9.0 * (np.arange(table(0).shape[-1]) == END), rows(6))
    np.testing.assert_array_equal(found, np.where(np.arange(LENGTH) == 0, END, 0) * np.ones((6, 1), np.int32))
