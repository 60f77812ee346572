"""The keys of relative positions of scan_length: against a plain program in float64, and decoded without a cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.scan_length.relative_keys import RelativeKeysAttention, RelativeKeysModel
from t5xpg.models.attention import Attention
from t5xpg.models.attention.biases import AttentionPattern
from t5xpg.models.attention.relative_positions import RelativePositionBias, relative_position_bucket
from t5xpg.models.config import T5Config
from t5xpg.models.decoding import DecodingConfig, beam_search, greedy
from t5xpg.models.layers import OFF
from t5xpg.models.parts import Heads
from t5xpg.models.positions import Buckets
from tests.models.test_beyond_t5 import SIZES, batch, model_of, parameters
from tests.models.test_layers import normal
from tests.refusals import refused
from tests.small_models import seq2seq

CONFIG = T5Config(**SIZES, positions=Buckets(in_every_layer=True))
KEY = jax.random.key(0)


def reference_attention(layer: Attention, x: np.ndarray, memory: np.ndarray, bias: np.ndarray) -> np.ndarray:
    def project(name: str, tokens: np.ndarray) -> np.ndarray:
        kernel = np.asarray(getattr(layer, name).kernel[...], np.float64)
        return (tokens @ kernel).reshape(*tokens.shape[:2], 2, 5)

    query, key, value = project("query", x), project("key", memory), project("value", memory)
    logits = np.einsum("bqhk,bshk->bhqs", query, key) + bias
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("bhqs,bshk->bqhk", weights, value).reshape(*x.shape[:2], 10)
    return mixed @ np.asarray(layer.out.kernel[...], np.float64)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_logits_of_attention(bidirectional: bool) -> None:
    """Shaw et al. 2018, equation 4: a logit is the query's product with its key and with that of the distance."""
    config = T5Config(9, emb_dim=6, num_heads=2, head_dim=5, positions=Buckets(8, 6))
    layer, positions = RelativeKeysAttention(KEY, config, bidirectional), RelativePositionBias(KEY, config)
    x = normal(2, 9, 6)
    table = positions.table(bidirectional=bidirectional)
    pattern = AttentionPattern(9, jnp.ones((2, 9), jnp.int32), None, None, is_causal=not bidirectional, positions=table)
    found = layer(jnp.asarray(x), *layer.project_keys_values(jnp.asarray(x)), pattern.make_bias(None), OFF)
    buckets = relative_position_bucket(np.arange(9)[None] - np.arange(9)[:, None], bidirectional, 8, 6)
    queries = (x.astype(np.float64) @ np.asarray(layer.query.kernel[...])).reshape(2, 9, 2, 5)
    keys = np.asarray(layer.rel_keys[...], np.float64)[..., buckets]  # [H, K, Q, S]
    bias = np.einsum("bqhk,hkqs->bhqs", queries, keys) + np.asarray(positions.rel_embedding[...])[:, buckets]
    hidden = 0.0 if bidirectional else np.where(np.tril(np.ones((9, 9))) > 0, 0.0, -1e10)
    np.testing.assert_allclose(found, reference_attention(layer, x, x, bias + hidden), atol=5e-5)


def test_what_is_decoded_is_what_a_full_pass_decodes() -> None:
    """The greedy answer, and the score of the best of three beams."""
    model = RelativeKeysModel(CONFIG)
    params, rows = parameters(model), batch()
    inputs = rows["encoder_input_tokens"]
    answers = np.asarray(jax.jit(functools.partial(greedy, model, max_decode_length=9))(params, inputs))
    full = jax.jit(model.logits)(params, seq2seq(inputs, answers))
    np.testing.assert_array_equal(np.asarray(full.argmax(axis=-1))[answers > 0], answers[answers > 0])
    beams = DecodingConfig("beam", num_decodes=3, alpha=0.0)
    search = functools.partial(beam_search, model, max_decode_length=9, config=beams)
    found = jax.jit(search)(params, inputs)
    best = np.asarray(found.tokens)[:, 0]
    chosen = jnp.take_along_axis(
        jax.nn.log_softmax(jax.jit(model.logits)(params, seq2seq(inputs, best))), best[..., None], axis=-1
    )[..., 0]
    np.testing.assert_allclose(found.scores[:, 0], jnp.sum(chosen * (best > 0), axis=1), rtol=1e-5)


def test_operations() -> None:
    """A product of a key of 6 numbers in each of 4 heads, for each pair of positions of two layers."""
    lengths = {"inputs": 10, "targets": 7}
    more = RelativeKeysModel(CONFIG).flops_per_example(lengths) - model_of("t5").flops_per_example(lengths)
    assert more == 3 * 2 * 2 * 4 * 6 * (10 * 10 + 7 * 7)


def test_settings_beyond_t5_are_refused() -> None:
    with refused("qk_norm"):
        RelativeKeysModel(T5Config(**SIZES, heads=Heads(qk_norm=True)))
