"""Language models without an encoder: what they compute, what a position sees, packed rows."""

import functools

import jax
import numpy as np
import pytest

from t5xpg.data.batch import LM, PREFIX_LM, layout_of
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.encoder_only import EncoderOnlyModel
from tests.models import plain_transformer
from tests.models.test_beyond_t5 import parameters
from tests.small_models import SIZES, relative_l2

MODEL = DecoderOnlyModel(T5Config(**SIZES))
T = 15


params = functools.cache(lambda: parameters(MODEL))


def rows(*examples: tuple[int, int]) -> dict[str, np.ndarray]:
    """One row, packed of examples with (tokens, of them prefix); the arrays of `PrefixLMFeatureConverter`."""
    rng = np.random.default_rng(0)
    batch = {name: np.zeros((1, T), np.int32) for name in layout_of(PREFIX_LM).arrays}
    start = 0
    for number, (length, prefix) in enumerate(examples, start=1):
        tokens = rng.integers(1, 29, length, np.int32)
        part = slice(start, start + length)
        batch["decoder_target_tokens"][0, part] = tokens
        batch["decoder_input_tokens"][0, part] = [0, *tokens[:-1]]
        batch["decoder_causal_attention"][0, part] = np.arange(length) < prefix
        batch["decoder_segment_ids"][0, part] = number
        start += length
    return batch


LOGITS = jax.jit(MODEL.logits)


def logits(batch: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(LOGITS(params(), batch))


@pytest.mark.parametrize("examples", [((13, 0),), ((12, 5),), ((6, 3), (5, 2)), ((4, 0), (7, 6), (4, 1))])
def test_it_computes_what_the_reference_computes(examples):
    batch = rows(*examples)
    tokens = batch["decoder_target_tokens"][0]
    starts = np.cumsum([0, *(length for length, _ in examples)])
    expected = [
        plain_transformer.logits_of_decoder(params(), MODEL.config, tokens[start : start + length].tolist(), prefix)
        for start, (length, prefix) in zip(starts[:-1], examples, strict=True)
    ]
    assert relative_l2(logits(batch)[0][: starts[-1]], np.concatenate(expected)) < 1e-5


def test_without_a_prefix_it_is_a_language_model():
    assert DecoderOnlyModel.feature_converters == (LM, PREFIX_LM)
    batch = rows((6, 0), (5, 0))
    as_lm = {name: batch[name] for name in layout_of(LM).arrays}
    assert set(as_lm) == set(batch) - {"decoder_causal_attention"}
    np.testing.assert_array_equal(logits(batch), logits(as_lm))
    causal = DecoderOnlyModel(MODEL.config, inputs_bidirectional_attention=False)
    with_prefix = rows((6, 3), (5, 2))
    np.testing.assert_array_equal(jax.jit(causal.logits)(params(), with_prefix), logits(as_lm))
    assert MODEL.for_decoding(PREFIX_LM).sees_itself
    assert not causal.for_decoding(PREFIX_LM).sees_itself


def test_an_encoder_alone_is_the_encoder_with_an_output_matrix():
    """Its rows may be packed: a segment is what it is in a row of its own."""
    config = T5Config(**SIZES)
    alone, whole = EncoderOnlyModel(config), EncoderDecoderModel(config)
    own = alone.init(jax.random.key(1))
    theirs = whole.init(jax.random.key(2)) | {"token_embedder": own["token_embedder"], "encoder": own["encoder"]}
    tokens = np.random.default_rng(0).integers(1, 29, (1, 9), np.int32)
    tokens[0, 7:] = 0
    batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": np.array([[1, 1, 1, 1, 2, 2, 2, 0, 0]], np.int32)}
    got = jax.jit(alone.logits)(own, batch)
    for part in (slice(0, 4), slice(4, 7)):
        expected = jax.jit(whole.encode)(theirs, tokens[:, part]) @ own["logits_dense"]["kernel"]
        assert relative_l2(got[:, part], expected) < 1e-6
