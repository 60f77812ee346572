"""Greedy decoding against the largest of each step's logits, row by row; transformers': exchange/test_importing.py."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.decoding import DecodingConfig, decode, greedy
from tests.models.decoding.automaton import END, Automaton, log_probabilities, rows, table

LENGTH = 9


def search(params: np.ndarray, inputs: np.ndarray, **options: Any) -> np.ndarray:
    searched = jax.jit(functools.partial(greedy, Automaton(), max_decode_length=LENGTH, **options))
    return np.asarray(searched(jnp.asarray(params), jnp.asarray(inputs)))


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


@pytest.mark.parametrize("config", [DecodingConfig(), DecodingConfig("beam", num_decodes=1)])
def test_it_stops_when_all_rows_have_ended(config: DecodingConfig) -> None:
    steps: list[int] = []

    class Counted(Automaton):
        def decode_step(self, params: jax.Array, cache: Any, tokens: jax.Array, step: jax.Array) -> Any:
            jax.debug.callback(lambda at: steps.append(int(at)), step)
            return super().decode_step(params, cache, tokens, step)

    search = jax.jit(lambda params, inputs: decode(Counted(), params, inputs, config, max_decode_length=LENGTH).tokens)
    found = search(jnp.asarray(table(0, end=30.0)), jnp.asarray(rows(6)))
    np.testing.assert_array_equal(found[:, 0], np.where(np.arange(LENGTH) == 0, END, 0) * np.ones((6, 1), np.int32))
    assert steps == [0]
