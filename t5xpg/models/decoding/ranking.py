"""The exact scores of all answers of a set, and the best of them: no search.

Shapes: B batch, M answers, C answers at a time, T length of the longest answer with its end, V vocab.
"""

import jax
import jax.numpy as jnp
from jax import lax

from t5xpg.models.decoding.protocol import NONE, Cache, Decodable, Decoded, Params, rows_at_a_time
from t5xpg.models.decoding.top_k import top_k

_AT_ONCE = 64  # answers that are scored together
_State = tuple[Cache, jax.Array, jax.Array]  # cache, the tokens before [B, C], the scores so far [B, C]


def rank(model: Decodable, params: Params, inputs: jax.Array, answers: jax.Array, count: int) -> Decoded:
    """The `count` most probable of the answers for each row of inputs [B, S] int32, padded with 0.

    answers: [M, T] int32, each up to its end token, then 0. Scores are log likelihoods, that of the end included. Where
    there are fewer answers, padding of score -inf follows. To be jitted by the caller with model and count fixed.
    """
    B, (M, T) = len(inputs), answers.shape
    C = min(M, _AT_ONCE)
    chunks = jnp.pad(answers, ((0, -M % C), (0, 0))).reshape(-1, C, T)
    cache = model.init_cache(params, inputs, T, rows=rows_at_a_time(inputs), beams=C)
    first = jnp.broadcast_to(model.first_tokens(inputs)[:, None], (B, C))

    def scores_of(tokens: jax.Array) -> jax.Array:
        """[C, T] -> [B, C]."""

        def extend(state: _State, step: jax.Array) -> tuple[_State, None]:
            cache, previous, scores = state
            logits, cache = model.decode_step(params, cache, previous, step)
            chosen = jnp.broadcast_to(tokens[:, step], (B, C))
            chosen_logits = jnp.take_along_axis(logits, chosen[..., None], axis=-1, mode="clip")[..., 0]
            log_probabilities = chosen_logits - jax.nn.logsumexp(logits, axis=-1)
            return (cache, chosen, scores + jnp.where(chosen == 0, 0.0, log_probabilities)), None

        start = (cache, first, jnp.zeros((B, C), jnp.float32))
        (_, _, scores), _ = lax.scan(extend, start, jnp.arange(T, dtype=jnp.int32))
        return scores

    scores = jnp.moveaxis(lax.map(scores_of, chunks), 0, 1).reshape(B, -1)
    width = max(count, scores.shape[1])
    scores = jnp.where(
        jnp.arange(width) < M, jnp.pad(scores, ((0, 0), (0, width - scores.shape[1]))), jnp.float32(NONE)
    )
    scores, places = top_k(scores, count)
    is_answer = scores > NONE / 2
    is_padding = jnp.all(inputs == 0, axis=1)
    tokens = jnp.where((is_answer & ~is_padding[:, None])[..., None], answers.at[places].get(mode="clip"), 0)
    return Decoded(tokens, jnp.where(is_padding[:, None], 0.0, jnp.where(is_answer, scores, -jnp.inf)))
