"""Beams and samples position by position, against full forward passes over each of their sequences."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.encoder_decoder import EncoderDecoderModel, T5Config

CONFIG = {
    "vocab_size": 23, "emb_dim": 16, "num_heads": 2, "head_dim": 6, "num_encoder_layers": 1,
    "num_decoder_layers": 2, "mlp_dim": 24,
}  # fmt: skip
B, N, S, T = 3, 4, 9, 7
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.mark.parametrize(
    ("dtype", "tolerance", "reordered"), [("float32", 2e-5, False), ("float32", 2e-5, True), ("bfloat16", 0.1, True)]
)
def test_each_step_has_the_logits_of_the_full_pass(dtype: str, tolerance: float, reordered: bool) -> None:
    """Where beams are reordered, each continues another one at random, several the same."""
    params = jit(EncoderDecoderModel(T5Config(**CONFIG)).init)(jax.random.key(2))
    model = EncoderDecoderModel(T5Config(**CONFIG, dtype=dtype))
    rng = np.random.default_rng(0)
    inputs = rng.integers(2, 23, size=(B, S)).astype(np.int32)
    inputs[1, 4:] = 0
    sequences = np.zeros((B, N, T), np.int32)
    full, decode_step = jit(model.logits), jit(model.decode_step)
    with jax.numpy_dtype_promotion("strict"):
        init = jit(functools.partial(model.init_cache, max_decode_length=T, rows=2, beams=N, reordered=reordered))
        cache = init(params, jnp.asarray(inputs))
        for step in range(T):
            if step:
                sequences[:, :, step] = rng.integers(2, 23, size=(B, N))
            logits, cache = decode_step(params, cache, jnp.asarray(sequences[:, :, step]), jnp.int32(step))
            expected = full(
                params,
                {
                    "encoder_input_tokens": jnp.asarray(np.repeat(inputs, N, axis=0)),
                    "decoder_input_tokens": jnp.asarray(sequences.reshape(B * N, T)),
                    "decoder_target_tokens": jnp.ones((B * N, T), jnp.int32),
                },
            )
            np.testing.assert_allclose(logits, expected.reshape(B, N, T, -1)[:, :, step], atol=tolerance)
            if reordered:
                parents = rng.integers(0, N, size=(B, N)).astype(np.int32)
                sequences = np.take_along_axis(sequences, parents[..., None], axis=1)
                cache = model.reorder_beams(cache, jnp.asarray(parents))


def test_what_beams_share_is_there_once() -> None:
    model = EncoderDecoderModel(T5Config(**CONFIG))
    shapes = jax.eval_shape(
        lambda: model.init_cache(model.init(jax.random.key(0)), jnp.ones((B, S), jnp.int32), T, None, N, True)
    )
    layer = shapes["layers"]["layers_0"]
    assert layer["source_keys"].shape == (B, 2, 6, S)
    assert layer["self_keys"].shape == (B, 2, 6, T * N)
