"""Log-likelihoods of continuations, as evaluation harnesses ask for them: texts in, sums of log-probabilities out.

An encoder-decoder can score a continuation in several ways. C is the tokens of the context, X those of the
continuation, E the end token, M the first sentinel, 0 the padding id, with which T5's decoder starts:

| scoring | the encoder reads | the decoder reads | scored |
|---|---|---|---|
| plain | C E | 0 X | X |
| prefix | C M E | 0 M X | X |
| mask | C X E, one token of X after another replaced by M | 0 M | that token |

`plain` is the scoring of lm-evaluation-harness (lm_eval/models/huggingface.py, seq2seq). `prefix` and `mask` are
enc_dec_prefix and enc_dec_mask of the BabyLM challenge (babylm/evaluation-pipeline-2025,
sentence_zero_shot/dataset.py), for a tokenizer without CLS; the decoder reads 0 as BOS. `mask` is a
pseudo-log-likelihood: the sum over single tokens, each given all others. A language model reads 0 C X; a prefix
language model 0 C E X, with C E as the prefix; X is scored. The end is never scored.
"""

import functools
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t5xpg.base.errors import UserError, nearest
from t5xpg.data.batch import ENC_DEC, LM, PREFIX_LM
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.models.decoding.top_k import argmax
from t5xpg.models.losses import cross_entropy_with_logits, token_weights
from t5xpg.models.model import Batch, Model, Params

PLAIN, PREFIX, MASK = "plain", "prefix", "mask"
SCORINGS = (PLAIN, PREFIX, MASK)


class TokenRow(NamedTuple):
    """Token ids of a row: the encoder's inputs, the decoder's prefix, and the tokens after it, which are scored."""

    inputs: list[int]
    prefix: list[int]
    scored: list[int]


class Score(NamedTuple):
    """log_likelihood: in nats, summed over tokens. is_greedy: whether every token was the most probable one."""

    log_likelihood: float
    is_greedy: bool


class LikelihoodScorer:
    """Scores texts with a model. converter: the feature converter of the batches that the model was trained on.

    batch_size: rows at a time; with `mask` every token is a row. Raises UserError for an unknown scoring, a scoring
    that the model does not have, and a model that gives texts no probability.
    """

    def __init__(
        self,
        model: Model,
        params: Params,
        vocabulary: Vocabulary,
        converter: str = ENC_DEC,
        scoring: str = PLAIN,
        batch_size: int = 32,
    ) -> None:
        if scoring not in SCORINGS:
            raise UserError(f"There is no scoring {scoring!r}.{nearest(scoring, SCORINGS)}")
        if converter not in (ENC_DEC, LM, PREFIX_LM):
            raise UserError(f"A {type(model).__name__} of batches of {converter} gives no text a probability.")
        if scoring != PLAIN and converter != ENC_DEC:
            raise UserError(f"The scoring {scoring!r} is of models with an encoder and a decoder: use {PLAIN!r}.")
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be at least 1.")
        self._vocabulary, self._params = vocabulary, params
        self._converter, self._scoring, self._batch_size = converter, scoring, batch_size
        self._score = jax.jit(functools.partial(_score, model))  # compiled once for each shape

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """The score of each continuation after its context. pairs: tuples (context, continuation).

        Spaces at the end of a context are read as the beginning of its continuation. Nothing is cut off.
        """
        return self._sums([self._rows(*pair) for pair in pairs])

    def rolling(self, texts: Sequence[str], window: int) -> list[float]:
        """The log-likelihood in nats of whole texts of any length; only for language models.

        window: how many tokens the model reads at once, at least 2. A longer text is scored in pieces of window - 1
        tokens, each after the token before it, the last one after as many as fit. Raises UserError for other models.
        """
        if self._converter != LM:
            raise UserError(
                "loglikelihood_rolling is of language models: a model with inputs and targets gives a text without a "
                "context no probability. Ask it for continuations (output_type: multiple_choice)."
            )
        return [score.log_likelihood for score in self._sums([self._windows(text, window) for text in texts])]

    def score_rows(self, rows: Sequence[TokenRow]) -> list[Score]:
        """The score of each row of token ids. Rows of similar lengths are computed together."""
        order = sorted(range(len(rows)), key=lambda n: [*map(len, rows[n])])
        scores: dict[int, Score] = {}
        for start in range(0, len(rows), self._batch_size):
            batch = order[start : start + self._batch_size]
            sums, greedy = jax.device_get(self._score(self._params, self._batch([rows[n] for n in batch])))
            scores |= {n: Score(float(sums[index]), bool(greedy[index])) for index, n in enumerate(batch)}
        return [scores[n] for n in range(len(rows))]

    def _sums(self, rows: Sequence[Sequence[TokenRow]]) -> list[Score]:
        """The score of each request: the sum over its rows."""
        scores = iter(self.score_rows([row for request in rows for row in request]))
        by_request = [[next(scores) for _ in request] for request in rows]
        return [
            Score(sum(one.log_likelihood for one in parts), all(one.is_greedy for one in parts)) for parts in by_request
        ]

    def _rows(self, context: str, continuation: str) -> list[TokenRow]:
        stripped = context.rstrip()
        context, continuation = stripped, context[len(stripped) :] + continuation
        encode, end = self._vocabulary.encode, self._vocabulary.eos_id
        if self._converter == LM or self._scoring == MASK:
            whole = encode(context + continuation)
            # up to the first token that the continuation changes: a token across the border is scored
            first = sum(accumulate(map(operator.eq, encode(context), whole), operator.and_))
            if self._converter == LM:
                return [TokenRow([], whole[:first], whole[first:])]
            mask = self._vocabulary.sentinel_id(0)
            masked = ([*whole[:i], mask, *whole[i + 1 :], end] for i in range(first, len(whole)))
            return [TokenRow(ids, [mask], [token]) for ids, token in zip(masked, whole[first:], strict=True)]
        masks = [self._vocabulary.sentinel_id(0)] if self._scoring == PREFIX else []
        return [TokenRow([*encode(context), *masks, end], masks, encode(continuation))]

    def _windows(self, text: str, window: int) -> list[TokenRow]:
        ids, piece = self._vocabulary.encode(text), window - 1
        ends = ((start, min(start + piece, len(ids))) for start in range(0, len(ids), piece))
        return [TokenRow([], ids[max(0, end - window) : start], ids[start:end]) for start, end in ends]

    def _batch(self, rows: Sequence[TokenRow]) -> dict[str, np.ndarray]:
        """The arrays of `batch_size` rows. Lengths are rounded up to powers of two, so that few shapes are compiled."""
        prefix_inputs = [row.inputs if self._converter == PREFIX_LM else [] for row in rows]
        targets = self._padded([[*ids, *row.prefix, *row.scored] for ids, row in zip(prefix_inputs, rows, strict=True)])
        weights, attention = np.zeros_like(targets), np.zeros_like(targets)
        for index, (ids, row) in enumerate(zip(prefix_inputs, rows, strict=True)):
            first = len(ids) + len(row.prefix)
            weights[index, first : first + len(row.scored)] = 1
            attention[index, : len(ids) + 1] = 1
        return {
            "encoder_input_tokens": self._padded([row.inputs for row in rows]),
            "decoder_target_tokens": targets,
            "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
            "decoder_loss_weights": weights,
            **({"decoder_causal_attention": attention} if self._converter == PREFIX_LM else {}),
        }

    def _padded(self, rows: Sequence[list[int]]) -> np.ndarray:
        """Rows of ids, padded to the batch size and to a power of two."""
        T = 1 << (max(1, *map(len, rows)) - 1).bit_length()
        tokens = np.full((self._batch_size, T), self._vocabulary.pad_id, np.int32)
        for row, ids in zip(tokens, rows, strict=False):  # further rows stay padding
            row[: len(ids)] = ids
        return tokens


def _score(model: Model, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """The log-likelihood (float32) of each row's scored tokens, and whether all are the most probable; both [B]."""
    logits, targets = model.logits(params, batch), batch["decoder_target_tokens"]
    weights = token_weights(batch)
    losses = cross_entropy_with_logits(logits, targets)
    hits = (argmax(logits) == targets) | (weights == 0)
    return -jnp.sum(losses * weights, axis=-1), jnp.all(hits, axis=-1)
