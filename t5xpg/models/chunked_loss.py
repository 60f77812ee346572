"""The loss of a large vocabulary without its logits: [B, T, V] exists for a few positions at a time.

Logits of 32,768 ids are the largest array of a training step, and on CPUs memory limits their speed. The loss is a
weighted sum over tokens with weights known beforehand. So the forward pass computes the gradient of a chunk's logits
with these logits, and neither is kept or computed again, as in Liger's fused linear cross-entropy (arXiv 2410.10989).
Values are those of `losses.loss_and_metrics` but for rounding. Shapes: B batch, T target length, D emb, V vocab; C
chunks of N positions.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5xpg.models import activation_sharding, losses
from t5xpg.models.attention.biases import join_queries, split_queries
from t5xpg.models.losses import LossConfig, TokenScores, side_of_targets

_CHUNK_BYTES = 32 << 20  # of the logits that exist at a time
_CHUNK_TOKENS = 256  # at least: each chunk reads the whole embedding and adds to its gradient

ToLogits = Callable[[jax.Array], jax.Array]  # states [B, T, D] -> logits [B, T, V] float32, position by position
# As ToLogits, with the arrays that it closes over as further arguments.
_Head = Callable[..., jax.Array]
_Rows = tuple[jax.Array, jax.Array, jax.Array]  # states, targets and weights of all chunks [C, B, N, ...], or of one
_Constants = tuple[jax.Array, ...]  # the arrays that the head closes over
_Gradients = tuple[jax.Array, _Constants]


def chunk_length(batch_size: int, target_length: int, vocab_size: int, emb_dim: int) -> int | None:
    """The number of positions in a chunk; None (no chunks) if the logits are few or lie on several devices.

    They are also few if they are no more than the numbers of the embedding, whose gradient exists in any case.
    """
    if batch_size * target_length <= emb_dim:
        return None
    length = max(_CHUNK_BYTES // (4 * batch_size * vocab_size), _CHUNK_TOKENS // batch_size, 1)
    return None if length >= target_length or activation_sharding.on_several_devices() else length


def loss_and_metrics(
    states: jax.Array,
    to_logits: ToLogits,
    batch: Mapping[str, jax.Array],
    config: LossConfig,
    token_bytes: np.ndarray | jax.Array,
    normalizer: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`losses.loss_and_metrics` of to_logits(states), by chunks where logits are many. states: [B, T, D]."""
    targets = batch[f"{side_of_targets(batch)}target_tokens"]
    B, T = targets.shape
    length = chunk_length(B, T, jax.eval_shape(to_logits, states).shape[-1], states.shape[-1])
    if length is None:
        return losses.loss_and_metrics(to_logits(states), batch, config, token_bytes, normalizer)
    weights, batch_normalizer = losses.loss_weights_and_normalizer(batch, config)
    weights = weights / (batch_normalizer if normalizer is None else normalizer)
    head, constants = jax.closure_convert(to_logits, states[:, :length])
    by_chunks = functools.partial(split_queries, size=length)
    loss, scores = _loss(head, config, jax.tree.map(by_chunks, (states, targets, weights)), tuple(constants))
    tokens = TokenScores(*(join_queries(chunk_scores, T) for chunk_scores in scores))
    return loss, losses.metrics(loss, tokens, batch, config, token_bytes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _loss(head: _Head, config: LossConfig, chunks: _Rows, constants: _Constants) -> tuple[jax.Array, TokenScores]:
    """The weighted sum of the losses of all chunks, and the scores for metrics [C, B, N], which have no gradient."""

    def add_chunk(total: jax.Array, chunk: _Rows) -> tuple[jax.Array, TokenScores]:
        part, scores = _chunk_loss(head, config, *chunk, constants)
        return total + part, scores

    return jax.lax.scan(add_chunk, jnp.float32(0.0), chunks)


def _chunk_loss(
    head: _Head, config: LossConfig, states: jax.Array, targets: jax.Array, weights: jax.Array, constants: _Constants
) -> tuple[jax.Array, TokenScores]:
    """As `_loss`, for a single chunk [B, N]."""
    logits = head(states, *constants)
    token_losses = losses.cross_entropy_with_logits(logits, targets, config.label_smoothing, config.z_loss)
    return jnp.sum(token_losses * weights), losses.token_scores(jax.lax.stop_gradient(logits), targets)


def _forward(
    head: _Head, config: LossConfig, chunks: _Rows, constants: _Constants
) -> tuple[tuple[jax.Array, TokenScores], _Gradients]:
    value_and_gradients = jax.value_and_grad(functools.partial(_chunk_loss, head, config), (0, 3), has_aux=True)

    def add_chunk(total: Any, chunk: Any) -> tuple[Any, Any]:
        (part, scores), (by_states, by_constants) = value_and_gradients(*chunk, constants)
        return jax.tree.map(jnp.add, total, (part, by_constants)), (scores, by_states)

    zeros = jnp.float32(0.0), jax.tree.map(jnp.zeros_like, constants)
    (loss, by_constants), (scores, by_states) = jax.lax.scan(add_chunk, zeros, chunks)
    return (loss, scores), (by_states, by_constants)


def _backward(head: _Head, config: LossConfig, gradients: _Gradients, gradient: tuple[jax.Array, Any]) -> Any:
    by_states, by_constants = jax.tree.map(lambda x: gradient[0].astype(x.dtype) * x, gradients)
    return (by_states, None, None), by_constants


_loss.defvjp(_forward, _backward)
