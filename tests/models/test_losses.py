"""The loss against a transcription of T5X's formulas in NumPy (float64)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.losses import (
    LossConfig,
    cross_entropy_with_logits,
    loss_and_metrics,
    loss_weights_and_normalizer,
)
from tests.refusals import refused

B, T, V = 3, 7, 11
TOKEN_BYTES = np.array([0, 0, 0, 1, 1, 1, 1, 1, 4, 0, 0], np.int32)


def example(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = (3 * rng.normal(size=(B, T, V))).astype(np.float32)
    targets = rng.integers(1, V, size=(B, T)).astype(np.int32)
    targets[0, 5:] = 0
    targets[2, 2:] = 0
    return logits, targets, (targets > 0).astype(np.int32)


def reference(logits, targets, label_smoothing, z_loss):
    """T5X: soft targets, log softmax, less the soft targets' entropy, plus z_loss * log(Z)^2."""
    logits = logits.astype(np.float64)
    vocab = logits.shape[-1]
    confidence, low = 1.0 - label_smoothing, label_smoothing / (vocab - 1)
    constant = -(confidence * np.log(confidence) + (vocab - 1) * low * np.log(low + 1e-20))
    soft = np.where(np.eye(vocab)[targets] > 0, confidence, low)
    log_z = np.log(np.exp(logits).sum(-1))
    z = z_loss * log_z**2
    loss = -(soft * (logits - log_z[..., None])).sum(-1) - constant + z
    softmax = np.exp(logits - log_z[..., None])
    gradient = (1 + 2 * z_loss * log_z)[..., None] * softmax - soft
    return loss, z, gradient


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("z_loss", [0.0, 1e-4, 0.1])
def test_cross_entropy_and_its_gradient_follow_t5x(label_smoothing, z_loss):
    logits, targets, _ = example()
    expected_loss, _, expected_gradient = reference(logits, targets, label_smoothing, z_loss)
    loss = cross_entropy_with_logits(jnp.asarray(logits), jnp.asarray(targets), label_smoothing, z_loss)
    np.testing.assert_allclose(loss, expected_loss, atol=2e-5)
    total = lambda x: cross_entropy_with_logits(x, jnp.asarray(targets), label_smoothing, z_loss).sum()  # noqa: E731
    np.testing.assert_allclose(jax.grad(total)(jnp.asarray(logits)), expected_gradient, atol=2e-6)


def test_large_logits_stay_finite():
    logits = jnp.asarray([[1e4, -1e4, 0.0]], jnp.float32)
    for target in range(3):
        loss = cross_entropy_with_logits(logits, jnp.asarray([target], jnp.int32), 0.0, 0.0)
        gradient = jax.grad(lambda x, t=target: cross_entropy_with_logits(x, jnp.asarray([t])).sum())(logits)
        np.testing.assert_allclose(loss, [[0.0, 2e4, 1e4][target]])
        assert np.isfinite(gradient).all()


def test_every_normalizer():
    logits, targets, weights = example()
    expected, _, _ = reference(logits, targets, 0.0, 1e-4)
    batch = {"decoder_target_tokens": jnp.asarray(targets), "decoder_loss_weights": jnp.asarray(weights)}
    total = (expected * weights).sum()
    per_sequence = [(expected * weights)[row].sum() / weights[row].sum() for row in range(B)]
    for factor, value in [
        (None, total),
        (8.0, total / 8),
        ("NUM_REAL_TARGET_TOKENS", total / weights.sum()),
        ("NUM_TOTAL_TARGET_TOKENS", total / (B * T)),
        ("AVERAGE_PER_SEQUENCE", np.mean(per_sequence)),
    ]:
        config = LossConfig(loss_normalizing_factor=factor)
        loss, sums = jax.jit(lambda x, c=config: loss_and_metrics(x, batch, c, TOKEN_BYTES))(jnp.asarray(logits))
        np.testing.assert_allclose(loss, value, rtol=2e-6, err_msg=str(factor))
        assert sums["loss"] == loss


def test_average_per_sequence_counts_packed_sequences_one_by_one():
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0, 0], [1, 2, 2, 2, 2, 2, 2]], jnp.int32)
    weights = jnp.asarray([[1, 1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1, 0]], jnp.int32)  # one is in no segment
    batch = {"decoder_target_tokens": segments * 3, "decoder_segment_ids": segments, "decoder_loss_weights": weights}
    got, normalizer = loss_weights_and_normalizer(batch, LossConfig(loss_normalizing_factor="AVERAGE_PER_SEQUENCE"))
    third, fifth = 1 / 3, 1 / 5
    expected = [[third, third, third, 0, 1, 0, 0], [1, fifth, fifth, fifth, fifth, fifth, 0]]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_allclose(normalizer, 4.0, rtol=1e-6)


def test_metric_sums_leave_smoothing_and_z_loss_out():
    logits, targets, weights = example(1)
    expected, _, _ = reference(logits, targets, 0.0, 0.0)
    _, expected_z, _ = reference(logits, targets, 0.0, 0.05)
    batch = {"decoder_target_tokens": jnp.asarray(targets)}  # weights from the padding
    _, sums = loss_and_metrics(jnp.asarray(logits), batch, LossConfig(0.05, 0.2), TOKEN_BYTES)
    np.testing.assert_allclose(sums["cross_entropy"], (expected * weights).sum(), rtol=1e-6)
    np.testing.assert_allclose(sums["z_loss"], (expected_z * weights).sum(), rtol=1e-6)
    assert float(sums["weights"]) == weights.sum()
    assert float(sums["correct"]) == ((logits.argmax(-1) == targets) * weights).sum()
    assert float(sums["target_bytes"]) == (TOKEN_BYTES[targets] * (weights > 0)).sum()
    assert {value.dtype for value in sums.values()} == {np.dtype(np.float32)}


def test_a_batch_of_padding_has_loss_zero():
    batch = {"decoder_target_tokens": jnp.zeros((B, T), jnp.int32)}
    for factor in (None, "NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"):
        loss, _ = loss_and_metrics(jnp.ones((B, T, V)), batch, LossConfig(loss_normalizing_factor=factor), TOKEN_BYTES)
        assert loss == 0.0


def test_mistakes_are_named():
    for settings, named in (
        ({"loss_normalizing_factor": "NUM_REAL_TARGET_TOKEN"}, "NUM_REAL_TARGET_TOKENS"),
        ({"loss_normalizing_factor": 0.0}, "above 0"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"z_loss": -1.0}, "z_loss"),
    ):
        with refused(named):
            LossConfig(**settings)
