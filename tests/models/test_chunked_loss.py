"""The loss by chunks of positions against the one of all logits, which test_losses.py holds against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models import chunked_loss, losses
from t5xpg.models.chunked_loss import chunk_length
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.losses import LossConfig
from tests.small_models import ONE_LAYER, SIZES

B, T, V = 3, 10, 512
TOKEN_BYTES = np.arange(V, dtype=np.int32) % 5
BATCH = {
    "decoder_input_tokens": np.random.default_rng(2).integers(1, V, (B, T), np.int32),
    "decoder_target_tokens": np.random.default_rng(3).integers(0, V, (B, T), np.int32) * np.tri(B, T, 7, np.int32),
}


@pytest.mark.parametrize(
    ("settings", "config", "tolerance"),
    [
        ({}, LossConfig(), 1e-5),
        ({"logits_via_embedding": True, "logit_softcap": 5.0}, LossConfig(0.05, 0.2, "AVERAGE_PER_SEQUENCE"), 1e-5),
        ({"dtype": "bfloat16"}, LossConfig(loss_normalizing_factor=None), 1e-2),
    ],
)
def test_loss_gradients_and_metrics_are_those_of_all_logits(monkeypatch, settings, config, tolerance):
    t5 = DecoderOnlyModel(T5Config(**{**SIZES, **ONE_LAYER, "vocab_size": V}, **settings))
    params = t5.init(jax.random.key(0))

    def by_chunks(params):
        states, to_logits = t5.outputs(params, BATCH)
        return chunked_loss.loss_and_metrics(states, to_logits, BATCH, config, TOKEN_BYTES, jnp.float32(7.0))

    def whole(params):
        return losses.loss_and_metrics(t5.logits(params, BATCH), BATCH, config, TOKEN_BYTES, jnp.float32(7.0))

    (_, expected), expected_gradients = jax.jit(jax.value_and_grad(whole, has_aux=True))(params)
    monkeypatch.setattr(chunked_loss, "_CHUNK_BYTES", 4 * B * V * 4)  # chunks of 4 positions: 4, 4, and 2
    monkeypatch.setattr(chunked_loss, "_CHUNK_TOKENS", 1)
    assert chunk_length(B, T, V, SIZES["emb_dim"]) == 4
    (_, sums), gradients = jax.jit(jax.value_and_grad(by_chunks, has_aux=True))(params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), sums, expected)
    for ours, theirs in zip(*map(jax.tree.leaves, (gradients, expected_gradients)), strict=True):
        assert ours.dtype == theirs.dtype
        assert jnp.linalg.norm(ours - theirs) <= tolerance * jnp.linalg.norm(theirs)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), jax.jit(by_chunks)(params)[1], expected)


def test_a_chunk_is_no_smaller_than_what_it_costs_to_read_the_embedding():
    assert chunk_length(8, 114, 32128, 512) == 32
    assert chunk_length(16, 128, 262144, 640) == 16, "256 tokens"
    assert chunk_length(4, 128, 262144, 640) is None, "fewer logits than numbers of the embedding"
    assert chunk_length(8, 128, 262144, 640) == 32


def test_no_array_of_all_logits_is_in_the_program():
    config = LossConfig()
    B, T, D, V = 8, 1024, 16, 1 << 15
    states, head = jnp.ones((B, T, D)), jnp.ones((D, V))
    batch = {"decoder_target_tokens": jnp.ones((B, T), jnp.int32)}

    def loss(states, head):
        return chunked_loss.loss_and_metrics(states, lambda x: x @ head, batch, config, TOKEN_BYTES)[0]

    program = jax.jit(jax.grad(loss, (0, 1))).lower(states, head).compile()
    assert program.memory_analysis().temp_size_in_bytes < 4 * B * T * V / 5
