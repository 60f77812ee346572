"""Attention by chunks of queries against attention of all queries at once: logits, gradients, and what it holds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.attention import Projections, attend_by_chunks, attend_dense
from t5xpg.models.attention.biases import AttentionPattern, ChunkedBias, DenseBias
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.layers import OFF
from tests.small_models import ONE_LAYER, largest_array, relative_l2, seq2seq
from tests.small_models import SIZES as LARGER

SIZES = LARGER | ONE_LAYER
S, T = 26, 19


def a_batch(packed: bool) -> dict[str, np.ndarray]:
    """Two rows: one full, or packed of three; one half empty."""
    rng = np.random.default_rng(0)
    batch = seq2seq(*(rng.integers(1, 29, (2, length), np.int32) for length in (S, T)))
    batch["encoder_input_tokens"][1, 11:] = 0
    batch["decoder_target_tokens"][1, 8:] = 0
    if packed:
        for name, tokens in (("encoder", "encoder_input_tokens"), ("decoder", "decoder_target_tokens")):
            ends = np.asarray([[9, 14, 99], [4, 6, 99]])
            segments = 1 + (np.arange(batch[tokens].shape[1])[None, :, None] >= ends[:, None, :]).sum(-1)
            batch[f"{name}_segment_ids"] = np.where(batch[tokens] > 0, segments, 0).astype(np.int32)
    return batch


def logits_and_gradients(batch: dict[str, np.ndarray], key: jax.Array | None = None, **settings: Any) -> Any:
    model = EncoderDecoderModel(T5Config(**SIZES, **settings))
    params = EncoderDecoderModel(T5Config(**SIZES)).init(jax.random.key(0))
    weights = np.random.default_rng(1).normal(size=(2, T, 29)).astype(np.float32)
    weights *= batch["decoder_target_tokens"][..., None] > 0

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        logits = model.logits(params, batch, dropout_key=key)
        return jnp.sum(logits * weights), logits

    (_, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return np.where(weights != 0, logits, 0.0), gradients


def largest_difference(got: Any, expected: Any) -> float:
    """Over all arrays: the L2 norm of the difference by that of what is expected."""
    return max(jax.tree.leaves(jax.tree.map(relative_l2, got, expected)))


@pytest.mark.parametrize(
    ("packed", "size", "tolerance", "settings"),
    [
        (False, 8, 2e-6, {}),  # divides neither inputs nor targets
        (True, 13, 2e-6, {"dropout_rate": 0.2}),  # divides the inputs
        (True, 8, 0.05, {"dtype": "bfloat16", "float32_attention_logits": True}),
    ],
)
def test_chunks_compute_what_the_whole_computes(packed, size, tolerance, settings):
    batch, key = a_batch(packed), jax.random.key(5) if "dropout_rate" in settings else None
    expected = logits_and_gradients(batch, key, **settings)
    got = logits_and_gradients(batch, key, attention_chunk_size=size, **settings)
    assert largest_difference(got, expected) < tolerance


@pytest.mark.parametrize("chunk_size", [None, 8])
def test_sums_beyond_the_largest_number_of_float16(chunk_size):
    """Equal weights of 512 keys: undivided, they and values of 300 sum to 153,600."""
    queries = keys = jnp.zeros((1, 512, 1, 2), jnp.float16)
    values = jnp.full((1, 512, 1, 2), 300.0, jnp.float16)
    bias = AttentionPattern(512, jnp.ones((1, 512), jnp.int32), None, None).make_bias(chunk_size)

    def attend(values: jax.Array) -> jax.Array:
        if isinstance(bias, DenseBias):
            return attend_dense(Projections(queries, keys, values), bias, OFF)
        assert isinstance(bias, ChunkedBias)
        return attend_by_chunks(Projections(queries, keys, values), bias, OFF)

    mixed, transpose = jax.vjp(attend, values)
    np.testing.assert_allclose(mixed, 300.0, rtol=2e-3)
    (of_values,) = transpose(jnp.ones_like(mixed))
    np.testing.assert_allclose(of_values, 1.0, rtol=4e-3)


def test_short_inputs_are_the_same_program_as_without_chunks():
    params = EncoderDecoderModel(T5Config(**SIZES)).abstract_params()

    def program(**settings: Any) -> str:
        model = EncoderDecoderModel(T5Config(**SIZES, **settings))
        return str(jax.make_jaxpr(lambda p: model.logits(p, a_batch(True)))(params))

    assert program(attention_chunk_size=26) == program()
    assert program(attention_chunk_size=25) != program()


def test_no_array_holds_all_pairs():
    """What is largest, forward and backward, grows with the length and not with its square."""

    def largest(length: int, **settings: Any) -> int:
        model = EncoderDecoderModel(T5Config(**SIZES, **settings))
        names = ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")
        segments = ("encoder_segment_ids", "decoder_segment_ids")
        return largest_array(model, {name: jax.ShapeDtypeStruct((1, length), np.int32) for name in names + segments})

    heads = SIZES["num_heads"]
    assert largest(1024) >= heads * 1024**2
    assert largest(1024, attention_chunk_size=64) < 2 * heads * 64 * 1024
    assert largest(2048, attention_chunk_size=64) < 2 * heads * 64 * 2048
