"""Scores of targets against sums of NumPy's log-softmax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from t5xpg.models.config import T5Config
from t5xpg.models.decoding import score
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from tests.refusals import refused
from tests.small_models import SIZES, seq2seq

MODEL = EncoderDecoderModel(T5Config(**SIZES))


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs, targets = (rng.integers(2, 29, size=(3, length)).astype(np.int32) for length in (7, 5))
    targets[1, 3:] = 0
    targets[2] = 0
    return seq2seq(inputs, targets) | {"decoder_loss_weights": (targets > 0).astype(np.int32)}


def test_a_score_is_the_sum_of_the_targets_log_probabilities() -> None:
    params = MODEL.init(jax.random.key(0))
    given = batch()
    logits = np.asarray(jax.jit(MODEL.logits)(params, given), np.float64)
    normalised = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    of_targets = np.take_along_axis(normalised, given["decoder_target_tokens"][..., None], axis=-1)[..., 0]
    run = jax.jit(functools.partial(score, MODEL))
    found = run(params, given)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, (of_targets * given["decoder_loss_weights"]).sum(axis=1), rtol=1e-5)
    assert found[2] == 0
    weights = given.pop("decoder_loss_weights")
    np.testing.assert_array_equal(run(params, given), found)  # by the padding, where there are none
    weights[0, :2] = 0
    part = run(params, given | {"decoder_loss_weights": weights})
    np.testing.assert_allclose(part[0], of_targets[0, 2:].sum(), rtol=1e-5)


def test_packed_rows_have_no_score() -> None:
    with refused("packed"):
        score(MODEL, {}, batch() | {"decoder_segment_ids": np.ones((3, 5), np.int32)})
