"""Rows, beams and samples position by position, against full forward passes over each of their sequences."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from tests.small_models import SIZES, seq2seq

B, N, S, T = 3, 4, 9, 7


@pytest.mark.parametrize(
    ("dtype", "tolerance", "beams", "reordered"),
    [
        ("float32", 2e-5, None, False),
        ("float32", 2e-5, N, False),
        ("float32", 2e-5, N, True),
        ("bfloat16", 0.1, None, False),
        ("bfloat16", 0.1, N, True),
    ],
)
def test_each_step_has_the_logits_of_the_full_pass(
    dtype: str, tolerance: float, beams: int | None, reordered: bool
) -> None:
    """Where beams are reordered, each continues another one at random, several the same."""
    params = jax.jit(EncoderDecoderModel(T5Config(**SIZES)).init)(jax.random.key(2))
    model = EncoderDecoderModel(T5Config(**SIZES, dtype=dtype))
    rng = np.random.default_rng(0)
    inputs = rng.integers(2, 29, size=(B, S)).astype(np.int32)
    inputs[1, 4:] = 0
    count = beams or 1
    sequences = np.zeros((B, count, T), np.int32)
    full, decode_step = jax.jit(model.logits), jax.jit(model.decode_step)
    # two rows at a time do not divide three: the largest part that does is encoded
    init = functools.partial(model.init_cache, max_decode_length=T, rows=2, beams=beams, reordered=reordered)
    cache = jax.jit(init)(params, jnp.asarray(inputs))
    for step in range(T):
        if step:
            sequences[:, :, step] = rng.integers(2, 29, size=(B, count))
        tokens = sequences[:, :, step] if beams else sequences[:, 0, step]
        logits, cache = decode_step(params, cache, jnp.asarray(tokens), jnp.int32(step))
        batch = seq2seq(np.repeat(inputs, count, axis=0), np.ones((B * count, T), np.int32))
        expected = full(params, batch | {"decoder_input_tokens": sequences.reshape(-1, T)})[:, step]
        np.testing.assert_allclose(logits.reshape(expected.shape), expected, atol=tolerance)
        if reordered:
            parents = rng.integers(0, count, size=(B, count)).astype(np.int32)
            sequences = np.take_along_axis(sequences, parents[..., None], axis=1)
            cache = model.reorder_beams(cache, jnp.asarray(parents))


def test_what_beams_share_is_there_once() -> None:
    model = EncoderDecoderModel(T5Config(**SIZES))
    tokens = jax.ShapeDtypeStruct((B, S), np.int32)
    init = functools.partial(model.init_cache, max_decode_length=T, beams=N, reordered=True)
    layer = jax.eval_shape(init, model.abstract_params(), tokens)["layers"]["layers_0"]
    assert layer["cross_keys"].shape == (B, 3, 5, S)
    assert layer["self_keys"].shape == (B, 3, 5, T * N)
