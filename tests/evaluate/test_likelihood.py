"""Scores of continuations, against a forward pass of each row alone."""

import functools

import jax
import numpy as np
import pytest

from t5xpg.data.batch import LM, MASKED_LM, PREFIX_LM
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.likelihood import MASK, PLAIN, PREFIX, LikelihoodScorer, TokenRow
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Model
from tests.refusals import refused
from tests.small_models import ONE_LAYER, SIZES

BYTES = Vocabulary()
M, E = BYTES.sentinel_id(0), BYTES.eos_id
PAIRS = [("the owl", " sat"), ("", "ab"), ("a ", "mouse <extra_id_1>"), ("another context", "s")]
CONFIG = T5Config(**{**SIZES, **ONE_LAYER, "vocab_size": BYTES.size})
MODELS = {kind: kind(CONFIG) for kind in (EncoderDecoderModel, DecoderOnlyModel)}
params_of = functools.cache(lambda kind: jax.tree.map(lambda x: 3.0 * x, MODELS[kind].init(jax.random.key(0))))
LOGITS = {kind: jax.jit(model.logits) for kind, model in MODELS.items()}


def scorer(kind: type[Model], *arguments: object, batch_size: int = 3) -> LikelihoodScorer:
    return LikelihoodScorer(MODELS[kind], params_of(kind), BYTES, *arguments, batch_size=batch_size)  # type: ignore[arg-type]


def log_probabilities(kind: type[Model], targets: list[int], **others: list[int]) -> np.ndarray:
    """[T, V] float64, of one row, padded to 32."""
    arrays = {"decoder_target_tokens": targets, "decoder_input_tokens": [0, *targets[:-1]], **others}
    batch = {name: np.array([[*ids, *[0] * (32 - len(ids))]], np.int32) for name, ids in arrays.items()}
    logits = np.asarray(LOGITS[kind](params_of(kind), batch), np.float64)[0, : len(targets)]
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def alone(kind: type[Model], targets: list[int], count: int, **others: list[int]) -> tuple[float, bool]:
    """Of one row: the log-probabilities of its last targets, added up; whether each is the most probable."""
    found, wanted = log_probabilities(kind, targets, **others)[-count:], targets[-count:]
    return float(found[np.arange(count), wanted].sum()), bool((found.argmax(axis=-1) == wanted).all())


def split(context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Bytes: the tokens of both together are those of each."""
    return BYTES.encode(context.rstrip()), BYTES.encode(context[len(context.rstrip()) :] + continuation)


def expected(scoring: str, context: str, continuation: str) -> tuple[float, bool]:
    C, X = split(context, continuation)
    if scoring == MASK:
        rows = [([*C, *X[:at], M, *X[at + 1 :], E], [M, X[at]], 1) for at in range(len(X))]
    else:
        masks = [M] if scoring == PREFIX else []
        rows = [([*C, *masks, E], [*masks, *X], len(X))]
    found = [alone(EncoderDecoderModel, ids, count, encoder_input_tokens=inputs) for inputs, ids, count in rows]
    return sum(one for one, _ in found), all(greedy for _, greedy in found)


def check(found: object, wanted: list[tuple[float, bool]]) -> None:
    np.testing.assert_allclose([one for one, _ in found], [one for one, _ in wanted], rtol=1e-4)  # type: ignore[attr-defined]
    assert [greedy for _, greedy in found] == [greedy for _, greedy in wanted]  # type: ignore[attr-defined]


@pytest.mark.parametrize("scoring", [PLAIN, PREFIX, MASK])
def test_the_scorings_of_an_encoder_decoder(scoring: str) -> None:
    found = scorer(EncoderDecoderModel, "EncDecFeatureConverter", scoring).scores(PAIRS)
    check(found, [expected(scoring, *pair) for pair in PAIRS])


def test_greedy_answers_are_greedy() -> None:
    tokens: list[int] = []
    inputs = [*BYTES.encode("owl"), E]
    for _ in range(3):
        found = log_probabilities(EncoderDecoderModel, [*tokens, E], encoder_input_tokens=inputs)
        tokens.append(int(found[-1].argmax()))
    other = [*tokens[:2], tokens[2] - 1]
    scores = scorer(EncoderDecoderModel).score_rows([TokenRow(inputs, [], other), TokenRow(inputs, [], tokens)])
    assert [score.is_greedy for score in scores] == [False, True]
    assert scorer(EncoderDecoderModel).scores([("owl", "")]) == [(0.0, True)]


def test_decoders_alone_read_the_context_before() -> None:
    rows = [split(*pair) for pair in PAIRS]
    check(scorer(DecoderOnlyModel, LM).scores(PAIRS), [alone(DecoderOnlyModel, C + X, len(X)) for C, X in rows])
    prefixes = [
        alone(DecoderOnlyModel, [*C, E, *X], len(X), decoder_causal_attention=[1] * (len(C) + 2) + [0] * (len(X) - 1))
        for C, X in rows
    ]
    check(scorer(DecoderOnlyModel, PREFIX_LM).scores(PAIRS), prefixes)


def test_whole_texts_in_windows() -> None:
    ids = BYTES.encode("abcdefgh")
    windows = [(ids[:3], 3), (ids[2:6], 3), (ids[4:8], 2)]  # each token is counted once
    wanted = [sum(alone(DecoderOnlyModel, row, count)[0] for row, count in windows)]
    wanted.append(alone(DecoderOnlyModel, BYTES.encode("abc"), 3)[0])
    found = scorer(DecoderOnlyModel, LM).rolling(["abcdefgh", "abc"], window=4)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    with refused("loglikelihood_rolling"):
        scorer(EncoderDecoderModel).rolling(["a"], window=4)


def test_what_cannot_be_scored() -> None:
    for arguments, named in (
        (("EncDecFeatureConverter", "prefx"), "prefix"),
        ((LM, MASK), "plain"),
        ((MASKED_LM,), "no text a probability"),
    ):
        with refused(named):
            scorer(DecoderOnlyModel, *arguments)
    with refused("batch_size"):
        scorer(DecoderOnlyModel, LM, batch_size=0)
