"""T5's loss: cross entropy with z-loss, label smoothing, weights and the ways of normalising that T5X defines.

Source: t5x/losses.py. Shapes: B batch, T target length, V vocab. All sums are float32.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t5xpg.base.errors import UserError, nearest

NORMALIZERS = ("NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE")


@dataclass(frozen=True)
class LossConfig:
    """The loss function.

    z_loss: factor of log(Z)^2 per token, which keeps logits from drifting (T5X: 1e-4).
    label_smoothing: probability that is spread over the wrong tokens, in [0, 1).
    loss_normalizing_factor: the divisor of the sum over tokens. A number; None for nothing (T5X's pretraining
        default: Adafactor with parameter scaling does not see it, except by its epsilon); or one of
        "NUM_REAL_TARGET_TOKENS" (the sum of the loss weights: the mean over tokens),
        "NUM_TOTAL_TARGET_TOKENS" (B * T, padding counted),
        "AVERAGE_PER_SEQUENCE" (the mean over sequences of each sequence's mean, packed sequences counted one by one).

    Raises UserError for a value that makes no sense.
    """

    z_loss: float = 1e-4
    label_smoothing: float = 0.0
    loss_normalizing_factor: float | str | None = "NUM_REAL_TARGET_TOKENS"

    def __post_init__(self) -> None:
        if not self.z_loss >= 0.0:
            raise UserError(f"LossConfig.z_loss is {self.z_loss!r}; it must be at least 0.")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UserError(f"LossConfig.label_smoothing is {self.label_smoothing!r}; it must be in [0, 1).")
        factor = self.loss_normalizing_factor
        if isinstance(factor, str):
            if factor not in NORMALIZERS:
                raise UserError(f"LossConfig.loss_normalizing_factor is {factor!r}.{nearest(factor, NORMALIZERS)}")
        elif factor is not None and not factor > 0:
            raise UserError(f"LossConfig.loss_normalizing_factor is {factor!r}; a number must be above 0.")


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def cross_entropy_with_logits(
    logits: jax.Array, targets: jax.Array, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> jax.Array:
    """Cross entropy of logits [..., V] float32 and targets [...] int32, with a stable gradient of its own.

    [...] float32: the cross entropy with the smoothed targets, less their entropy (so that 0 stays the best), plus
    z_loss * log(Z)^2 with Z the softmax's denominator.
    """
    return _cross_entropy_forward(logits, targets, label_smoothing, z_loss)[0]


def _smoothed(label_smoothing: float, vocab_size: int) -> tuple[float, float, float]:
    """Probability of the target, probability of each other token, entropy of the two."""
    on = 1.0 - label_smoothing
    off = label_smoothing / max(vocab_size - 1, 1)
    entropy = -(on * math.log(on) + (vocab_size - 1) * off * math.log(off + 1e-20))
    return on, off, entropy


def _is_target(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Boolean [..., V]; compared inside the reductions that use it instead of gathered, so that V can be sharded."""
    return targets[..., None] == jnp.arange(logits.shape[-1], dtype=targets.dtype)


def _log_normalizer_and_target(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log(Z) and the target's logit, each [...]."""
    log_z = jax.nn.logsumexp(logits, axis=-1)
    target_logits = jnp.sum(jnp.where(_is_target(logits, targets), logits, 0.0), axis=-1)
    return log_z, target_logits


def _cross_entropy_forward(
    logits: jax.Array, targets: jax.Array, label_smoothing: float, z_loss: float
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    if logits.ndim != targets.ndim + 1:
        raise ValueError(f"logits {logits.shape} and targets {targets.shape} do not belong together")
    on, off, entropy = _smoothed(label_smoothing, logits.shape[-1])
    log_z, target_logits = _log_normalizer_and_target(logits, targets)
    loss = log_z - on * target_logits - entropy
    if label_smoothing:
        loss = loss - off * (jnp.sum(logits, axis=-1) - target_logits)
    return loss + z_loss * jnp.square(log_z), (logits, targets, log_z)


def _cross_entropy_backward(
    label_smoothing: float, z_loss: float, residuals: tuple[jax.Array, jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, np.ndarray]:
    logits, targets, log_z = residuals
    on, off, _ = _smoothed(label_smoothing, logits.shape[-1])
    softmax = jnp.exp(logits - log_z[..., None])
    soft_targets = jnp.where(_is_target(logits, targets), on, off).astype(logits.dtype)
    # d(z_loss * log_z^2) = 2 * z_loss * log_z * softmax
    derivative = (1.0 + 2.0 * z_loss * log_z)[..., None] * softmax - soft_targets
    return gradient[..., None] * derivative, np.zeros(targets.shape, dtype=jax.dtypes.float0)


cross_entropy_with_logits.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def side_of_targets(batch: Mapping[str, Any]) -> str:
    """The prefix in the names of the arrays that the loss reads: "decoder_", or "encoder_" for an encoder alone."""
    return "decoder_" if "decoder_target_tokens" in batch else "encoder_"


def token_weights(batch: Mapping[str, jax.Array]) -> jax.Array:
    """The loss weights [B, T] float32; where a batch has none: 1 for every target, 0 for padding (id 0)."""
    side = side_of_targets(batch)
    weights = batch.get(f"{side}loss_weights")
    if weights is None:
        weights = batch[f"{side}target_tokens"] > 0
    return weights.astype(jnp.float32)


def loss_weights_and_normalizer(batch: Mapping[str, jax.Array], config: LossConfig) -> tuple[jax.Array, jax.Array]:
    """Each token's weight in the loss [B, T], and the number that the weighted sum is divided by; float32.

    For a batch that is computed in parts, use the normaliser of the whole; losses and gradients of parts then add up.
    Where T5X divides by 0 (a batch without a single target), the normaliser here is 1.
    """
    weights = token_weights(batch)
    factor = config.loss_normalizing_factor
    if factor == "AVERAGE_PER_SEQUENCE":
        segments = batch.get(f"{side_of_targets(batch)}segment_ids")
        if segments is None:
            of_sequence = jnp.sum(weights, axis=-1, keepdims=True)
        else:
            weights = jnp.where(segments > 0, weights, 0.0)  # as T5X: positions in no segment do not count
            same = (segments[:, :, None] == segments[:, None, :]).astype(jnp.float32)
            of_sequence = jnp.einsum("bts,bs->bt", same, weights, precision=jax.lax.Precision.HIGHEST)
        weights = weights / jnp.where(of_sequence == 0, 1.0, of_sequence)
    if factor is None:
        normalizer = jnp.float32(1.0)
    elif factor == "NUM_TOTAL_TARGET_TOKENS":
        normalizer = jnp.float32(weights.size)
    elif isinstance(factor, str):
        normalizer = jnp.sum(weights)
    else:
        normalizer = jnp.float32(factor)
    return weights, jnp.where(normalizer == 0, 1.0, normalizer)


def loss_and_metrics(
    logits: jax.Array,
    batch: Mapping[str, jax.Array],
    config: LossConfig,
    token_bytes: np.ndarray | jax.Array,
    normalizer: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss to be minimised, and sums over the batch from which metrics are computed.

    logits: [B, T, V] float32. batch: decoder_target_tokens [B, T], and decoder_loss_weights and decoder_segment_ids
    where it has them ("encoder_" for an encoder alone). token_bytes: int32 [vocabulary], number of UTF-8 bytes per id.
    normalizer: for a part of a batch, the normaliser of the whole batch.

    The sums, float32 scalars: "loss" (what is minimised, normalised), "cross_entropy" (nats, over tokens by their
    weights, without z-loss and smoothing), "z_loss" (over tokens by their weights), "weights", "correct" (tokens whose
    logit is the largest, by their weights), "target_bytes" (bytes of all tokens with a weight).
    """
    targets = batch[f"{side_of_targets(batch)}target_tokens"]
    weights, batch_normalizer = loss_weights_and_normalizer(batch, config)
    losses = cross_entropy_with_logits(logits, targets, config.label_smoothing, config.z_loss)
    loss = jnp.sum(losses * weights) / (batch_normalizer if normalizer is None else normalizer)
    return loss, metrics(loss, token_scores(jax.lax.stop_gradient(logits), targets), batch, config, token_bytes)


class TokenScores(NamedTuple):
    """For metrics, per token [...] float32: log(Z), the target's logit, and 1 where that logit is the largest."""

    log_z: jax.Array
    target_logits: jax.Array
    hits: jax.Array


def token_scores(logits: jax.Array, targets: jax.Array) -> TokenScores:
    """The scores of targets [...] int32 by logits [..., V] float32."""
    hits = (jnp.argmax(logits, axis=-1).astype(targets.dtype) == targets).astype(jnp.float32)
    return TokenScores(*_log_normalizer_and_target(logits, targets), hits)


def metrics(
    loss: jax.Array,
    tokens: TokenScores,
    batch: Mapping[str, jax.Array],
    config: LossConfig,
    token_bytes: np.ndarray | jax.Array,
) -> dict[str, jax.Array]:
    """The sums of `loss_and_metrics`. tokens: of all targets [B, T]."""
    targets = batch[f"{side_of_targets(batch)}target_tokens"]
    weights = token_weights(batch)
    bytes_of_targets = jnp.take(jnp.asarray(token_bytes, jnp.float32), targets, mode="clip")
    return {
        "loss": jax.lax.stop_gradient(loss),
        "cross_entropy": jnp.sum((tokens.log_z - tokens.target_logits) * weights),
        "z_loss": jnp.sum(config.z_loss * jnp.square(tokens.log_z) * weights),
        "weights": jnp.sum(weights),
        "correct": jnp.sum(tokens.hits * weights),
        "target_bytes": jnp.sum(jnp.where(weights > 0, bytes_of_targets, 0.0)),
    }
