"""Constrained searches against all answers scored one by one: the same answers, the same scores, and no others."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5xpg.models.decoding import Decoded, DecodingConfig, decode
from t5xpg.models.decoding.answer_set import token_rows, trie
from t5xpg.models.decoding.constraint import Constraint, automaton
from tests.models.decoding.automaton import END, STATES, VOCABULARY, Automaton, log_probabilities, rows, table

LENGTH = 6
Answer = tuple[int, ...]
TOKENS = list(range(2, VOCABULARY))
answer_sets = st.lists(
    st.lists(st.sampled_from(TOKENS), max_size=LENGTH - 1).map(tuple), min_size=1, max_size=30, unique=True
)


@functools.partial(jax.jit, static_argnums=(2,))
def searched(params: jax.Array, inputs: jax.Array, config: DecodingConfig, constraint: Constraint) -> Decoded:
    return decode(Automaton(), params, inputs, config, LENGTH, eos_id=END, constraint=constraint)


def search(params: np.ndarray, inputs: np.ndarray, config: DecodingConfig, answers: Sequence[Answer]) -> Decoded:
    """The search with arrays of fixed sizes, so that one program serves all sets."""
    constraint = trie(token_rows(answers, END), END)
    offsets = np.full(200, constraint.offsets[-1], np.int32)
    offsets[: len(constraint.offsets)] = constraint.offsets
    end = len(constraint.distances) - 1
    last = len(offsets) - 2
    places = [np.zeros(200, np.int32) for _ in range(3)]
    for padded, values in zip(places, constraint[1:], strict=True):
        padded[: len(values)] = np.where(values == end, last, values) if values is constraint.next_states else values
    places[2][last] = 0
    return jax.device_get(searched(params, inputs, config, Constraint(offsets, *places)))


def likelihood(params: np.ndarray, row: np.ndarray, answer: Answer) -> float:
    """The log probability of an answer with its end."""
    whole = (*answer, END)
    return sum(float(log_probabilities(params, row, whole[:n])[token]) for n, token in enumerate(whole))


def answer_of(tokens: np.ndarray) -> Answer:
    return tuple(int(token) for token in tokens[: list(tokens).index(END)])


@settings(deadline=None, max_examples=40)
@given(answer_sets, st.integers(0, 3))
def test_a_wide_search_finds_all_answers_with_the_scores_of_each_alone(answers: list[Answer], seed: int) -> None:
    params, inputs = table(seed), rows(3)
    config = DecodingConfig("beam", num_decodes=30, alpha=0.0)
    found = search(params, inputs, config, answers)
    assert found.scores is not None
    for row, tokens, scores in zip(inputs, found.tokens, found.scores, strict=True):
        alone = sorted(((likelihood(params, row, answer), answer) for answer in answers), reverse=True)
        assert [answer_of(one) for one in tokens[: len(answers)]] == [answer for _, answer in alone]
        np.testing.assert_allclose(scores[: len(answers)], [score for score, _ in alone], atol=1e-5)
        assert np.all(np.isneginf(scores[len(answers) :]))
        assert not tokens[len(answers) :].any()


@pytest.mark.parametrize("number", [1, 63, 64, 1000])
def test_ranked_answers_are_those_scored_one_by_one(number: int) -> None:
    answers = [*itertools.islice(itertools.product(TOKENS[:10], repeat=3), number - 1), (7,)]
    params, inputs = table(4), np.concatenate([rows(3), np.zeros_like(rows(1))])
    config = DecodingConfig("rank", num_decodes=5, allowed=("given below",))
    answer_rows = jnp.asarray(token_rows(answers, END))
    found = jax.device_get(
        decode(Automaton(), jnp.asarray(params), inputs, config, LENGTH, eos_id=END, constraint=answer_rows)
    )
    for row, tokens, scores in zip(inputs[:3], found.tokens, found.scores, strict=False):
        alone = sorted(((likelihood(params, row, answer), answer) for answer in answers), reverse=True)[:5]
        np.testing.assert_allclose(scores[: len(alone)], [score for score, _ in alone], atol=1e-5)
        assert [answer_of(one) for one in tokens[: len(alone)]] == [answer for _, answer in alone]
        assert np.all(np.isneginf(scores[len(alone) :]))
    assert not found.tokens[3].any()
    assert not found.scores[3].any()


@settings(deadline=None, max_examples=30)
@given(answer_sets, st.integers(0, 3))
@pytest.mark.parametrize(
    "config",
    [
        DecodingConfig(),
        DecodingConfig("beam", num_decodes=3),
        DecodingConfig("beam", num_decodes=3, length_penalty="transformers", alpha=1.0),
        DecodingConfig("sample", num_decodes=3),
        DecodingConfig("sample", num_decodes=3, topk=2, topp=0.8, rescale_log_probs=False),
    ],
    ids=["greedy", "beam", "beam as transformers", "sample", "sample of few"],
)
def test_no_search_leaves_the_set(config: DecodingConfig, answers: list[Answer], seed: int) -> None:
    found = search(table(seed), rows(3), config, answers)
    scores = np.zeros(found.tokens.shape[:2]) if found.scores is None else found.scores
    for row, row_scores in zip(found.tokens, scores, strict=True):
        assert not np.isneginf(row_scores[0])
        assert {answer_of(one) for one, score in zip(row, row_scores, strict=True) if score > -np.inf} <= set(answers)


def test_greedy_takes_the_best_allowed_token_at_each_step() -> None:
    answers = list(itertools.product(TOKENS[:4], TOKENS[3:6], TOKENS[1:3]))
    params, inputs = table(5), rows(4)
    for row, tokens in zip(inputs, search(params, inputs, DecodingConfig(), answers).tokens[:, 0], strict=True):
        expected: Answer = ()
        while expected not in answers:
            allowed = {answer[len(expected)] for answer in answers if answer[: len(expected)] == expected}
            following = log_probabilities(params, row, expected)
            expected = (*expected, max(allowed, key=lambda token: following[token]))
        assert answer_of(tokens) == expected


def test_samples_are_drawn_from_the_allowed_answers_as_the_model_ranks_them() -> None:
    answers: list[Answer] = [(2,), (2, 3), (4,)]
    params, inputs = table(1), np.repeat(rows(1), 64, axis=0)
    config = DecodingConfig("sample", num_decodes=32, return_all_decodes=True)
    found = search(params, inputs, config, answers)
    drawn = [answer_of(one) for row in found.tokens for one in row]

    def share(answer: Answer) -> float:
        """The product over its steps of the model's probability among the allowed tokens."""
        whole, result = (*answer, END), 1.0
        for n, token in enumerate(whole):
            following = np.exp(log_probabilities(params, inputs[0], whole[:n]))
            allowed = {(*one, END)[n] for one in answers if (*one, END)[:n] == whole[:n]}
            result *= following[token] / sum(following[one] for one in allowed)
        return result

    for answer in answers:
        assert drawn.count(answer) / len(drawn) == pytest.approx(share(answer), abs=0.04)


def test_an_automaton_may_have_circles() -> None:
    """(5 6)* 7, with an end behind 7 alone, by greedy search, in every length that is left for it."""
    sources, tokens, targets = np.array([[0, 0, 1, 2], [7, 5, 6, END], [2, 1, 0, 3]])
    built = automaton(sources, tokens, targets, 4)
    assert built.distances.tolist() == [2, 3, 1, 0]
    params = np.zeros((STATES, VOCABULARY), np.float32)
    params[:, 5] = 9.0  # it never wants to end
    for length in range(2, 9):
        found = decode(
            Automaton(), jnp.asarray(params), rows(2), DecodingConfig(), length, eos_id=END, constraint=built
        )
        circles = (length - 2) // 2
        assert [answer_of(np.asarray(one)) for one in found.tokens[:, 0]] == [(5, 6) * circles + (7,)] * 2


def test_the_trie_shares_beginnings_and_says_how_far_the_end_is() -> None:
    built = trie(token_rows([(5, 6), (5,), (5, 6, 7), (9,), (5, 6)], END), END)
    assert len(built.distances) == 1 + 4 + 1  # the start; 5, 56, 567, 9; the end
    assert len(built.tokens) == 4 + 4  # each token, and an end for each answer
    assert built.distances.tolist() == [2, 1, 1, 1, 1, 0]


def test_answers_that_are_too_long_are_not_begun() -> None:
    found = search(table(2), rows(5), DecodingConfig(), [(2,) * (LENGTH - 1), (3,) * LENGTH])
    assert {answer_of(tokens) for tokens in found.tokens[:, 0]} == {(2,) * (LENGTH - 1)}


def test_a_state_with_many_tokens_is_looked_at_in_several_passes() -> None:
    V = 300
    model: Any = Wide(V)
    constraint = trie(token_rows([(token,) for token in range(2, V, 2)], END), END)
    config = DecodingConfig("beam", num_decodes=4, alpha=0.0)
    logits = np.random.default_rng(0).normal(size=V).astype(np.float32)
    found = decode(model, jnp.asarray(logits), jnp.ones((1, 2), jnp.int32), config, 2, constraint=constraint)
    even = sorted(range(2, V, 2), key=lambda token: -logits[token])
    assert np.asarray(found.tokens)[0, :, 0].tolist() == even[:4]


@dataclasses.dataclass(frozen=True)
class Wide:
    """A `Decodable` that gives the same logits at each step."""

    V: int

    def init_cache(self, params: Any, inputs: jax.Array, max_decode_length: int, **_: Any) -> Any:
        return jnp.zeros(())

    def first_tokens(self, inputs: jax.Array) -> jax.Array:
        return jnp.zeros(len(inputs), jnp.int32)

    def decode_step(self, params: Any, cache: Any, tokens: jax.Array, step: jax.Array) -> tuple[jax.Array, Any]:
        return jnp.broadcast_to(params, (*tokens.shape, self.V)), cache

    def reorder_beams(self, cache: Any, parents: jax.Array) -> Any:
        return cache
