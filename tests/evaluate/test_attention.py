"""The attention that is shown is the one that the model computes with."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.attention import of_examples
from t5xpg.experiment import config
from t5xpg.models.attention import Attention
from t5xpg.models.attention.biases import DenseBias
from t5xpg.models.encoder_decoder import EncoderDecoderModel, T5Config
from t5xpg.models.layers import OFF
from tests.small_models import seq2seq

CONFIG = T5Config(
    vocab_size=384, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=2
)
INPUTS = np.array([[70, 80, 90, 1, 0, 0], [70, 80, 90, 100, 110, 1]], np.int32)
TARGETS = np.array([[65, 1, 0, 0], [66, 67, 68, 1]], np.int32)


def test_weights_are_those_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values, mixed by the weights of the last layer, are what the layer's own attention gives."""
    model = EncoderDecoderModel(CONFIG)
    params, batch = model.init(jax.random.key(0)), seq2seq(INPUTS, TARGETS)
    weights = jax.jit(model.source_attention)(params, batch)
    assert weights.shape == (2, 2, 2, 4, 6)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(weights[0, ..., 4:], 0.0)

    own, seen = Attention.__call__, []

    def kept(attention, x, keys, values, bias, *others):
        seen.append((attention, x, keys, values, bias))
        return own(attention, x, keys, values, bias, *others)

    monkeypatch.setattr(Attention, "__call__", kept)
    model.logits(params, batch)
    calls = [call for call in seen if call[2].shape[1] == INPUTS.shape[1] and call[1].shape[1] == TARGETS.shape[1]]
    assert len(calls) == CONFIG.num_decoder_layers
    for number, (attention, x, keys, values, bias) in enumerate(calls):
        mixed = jnp.einsum("bhts,bshk->bthk", weights[:, number], values)
        expected = own(attention, x, keys, values, bias, OFF)
        np.testing.assert_allclose(attention.out(mixed.reshape(*mixed.shape[:2], -1)), expected, rtol=1e-4, atol=1e-6)


def test_the_weights_of_logits_in_float32() -> None:
    config = dataclasses.replace(CONFIG, dtype="bfloat16", float32_attention_logits=True)
    model = EncoderDecoderModel(config)
    params = jax.tree.map(lambda leaf: 3 * leaf, model.init(jax.random.key(0)))
    attention = model.with_parameters(params).encoder.layers_0.attention
    x = jax.random.normal(jax.random.key(1), (2, 6, 16)).astype(jnp.bfloat16)
    keys, _ = attention.project_keys_values(x)
    bias = DenseBias(jnp.zeros((1, 1, 1, 6)))
    queries = np.asarray(attention.project_queries(x), np.float64)
    logits = np.einsum("bqhk,bshk->bhqs", queries, np.asarray(keys, np.float64))
    expected = np.exp(logits - logits.max(axis=-1, keepdims=True))
    expected /= expected.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(attention.weights(x, keys, bias), expected, rtol=1e-4, atol=1e-6)


def test_short_examples_are_kept_with_their_pieces() -> None:
    experiment = config.load("byt5_tiny").experiment
    model = EncoderDecoderModel(CONFIG)
    experiment = dataclasses.replace(experiment, model=model)
    params, vocabulary = model.init(jax.random.key(0)), Vocabulary("bytes", extra_ids=125)
    long = np.full((1, 60), 70, np.int32)
    inputs = np.concatenate([long, np.pad(INPUTS, ((0, 0), (0, 54)))])
    targets = np.concatenate([TARGETS[:1], TARGETS])
    first, second = of_examples(experiment, params, vocabulary, inputs, targets)
    assert first["inputs"] == ["C", "M", "W", "</s>"]
    assert second["outputs"] == ["?", "@", "A", "</s>"]
    weights = np.array(second["weights"])
    assert weights.shape == (4, 6)
    np.testing.assert_allclose(weights.sum(axis=1), 100, atol=3)
