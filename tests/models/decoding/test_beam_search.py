"""Beam search against one written row by row with lists, for both rules; and that rows stay by themselves."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.decoding import Decoded, DecodingConfig, beam_search
from tests.models.decoding.automaton import END, Automaton, log_probabilities, rows, table

LENGTH = 7
Rule = functools.partial(DecodingConfig, "beam", None, None, True)  # the penalty, alpha, when it stops
RULES = [
    *(Rule("t5x", alpha) for alpha in (0.0, 0.6, 2.0)),
    *(Rule("transformers", alpha) for alpha in (0.0, 1.0, -1.0)),
    Rule("transformers", 1.0, True),
    Rule("transformers", 1.5, "never"),
    Rule("transformers", -1.0, "never"),
]
Sequences = list[tuple[tuple[int, ...], float]]


@functools.cache
def search(rule: DecodingConfig, beams: int = 4, length: int = LENGTH) -> Callable[..., Decoded]:
    config = dataclasses.replace(rule, num_decodes=beams)
    return jax.jit(functools.partial(beam_search, Automaton(), max_decode_length=length, config=config, eos_id=END))


def penalty(rule: DecodingConfig, length: int) -> float:
    return ((5 + length) / 6) ** rule.alpha if rule.length_penalty == "t5x" else length**rule.alpha


def by_lists(params: np.ndarray, inputs: np.ndarray, rule: DecodingConfig, beams: int) -> Sequences:
    """The sequences of one row with their scores, the best first: straight from the two rules' descriptions."""
    t5x = rule.length_penalty == "t5x"
    going_on: Sequences = [((), 0.0)]
    ended: Sequences = []
    for length in range(1, LENGTH + 1):
        continued: Sequences = []
        for tokens, total in going_on:
            following = log_probabilities(params, inputs, tokens)
            continued += [((*tokens, token), total + float(following[token])) for token in range(len(following))]
        best = sorted(continued, key=lambda one: -one[1])[: 2 * beams]
        going_on = []
        for rank, (tokens, total) in enumerate(best):
            if tokens[-1] == END or (not t5x and length == LENGTH):
                if t5x or rank < beams:
                    ended.append((tokens, total / penalty(rule, length)))
            else:
                going_on.append((tokens, total))
        going_on = going_on[:beams]
        ended = sorted(ended, key=lambda one: -one[1])[:beams]
        if len(ended) == beams and going_on:
            worst = ended[-1][1]
            if t5x:
                done = worst > going_on[0][1] / penalty(rule, LENGTH)
            elif rule.early_stopping is True:
                done = True
            else:
                reached = LENGTH if rule.early_stopping == "never" and rule.alpha > 0 else length
                done = worst >= going_on[0][1] / penalty(rule, reached)
            if done:
                break
    left = [(tokens, total / penalty(rule, LENGTH)) for tokens, total in going_on]
    return (ended + left)[:beams]


@pytest.mark.parametrize(("rule", "beams"), [*((rule, 4) for rule in RULES), (RULES[1], 1), (RULES[4], 3)], ids=str)
def test_it_finds_what_a_search_with_lists_finds(rule: DecodingConfig, beams: int) -> None:
    inputs = rows(5)
    lengths = set()
    for end in (-1.0, 2.0, 4.0):  # ends are rare, and then likely
        params = table(seed=beams, end=end)
        found = search(rule, beams)(jnp.asarray(params), inputs=jnp.asarray(inputs))
        assert (found.tokens.dtype, found.scores.dtype) == (jnp.int32, jnp.float32)
        for row in range(len(inputs)):
            expected = by_lists(params, inputs[row], rule, beams)
            for place, (tokens, score) in enumerate(expected):
                got = np.asarray(found.tokens[row, place])
                np.testing.assert_array_equal(got, np.pad(tokens, (0, LENGTH - len(tokens))))
                np.testing.assert_allclose(found.scores[row, place], score, rtol=1e-4, atol=1e-5)
                lengths.add(len(tokens))
    assert len(lengths) > 1


@pytest.mark.parametrize("rule", RULES[1::5], ids=str)
def test_rows_do_not_depend_on_each_other_and_padding_rows_are_empty(rule: DecodingConfig) -> None:
    params, inputs = jnp.asarray(table(1)), rows(6)
    together = search(rule)(params, inputs=jnp.asarray(inputs))
    some = inputs.copy()
    some[3:] = 0
    alone = search(rule)(params, inputs=jnp.asarray(some))
    for found, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(found[:3], other[:3])
    assert not alone.tokens[3:].any()
    assert not alone.scores[3:].any()


def test_more_beams_than_tokens_and_a_length_of_one() -> None:
    found = search(Rule("t5x", 0.6), beams=6, length=1)(jnp.asarray(table(4)), inputs=jnp.asarray(rows(2)))
    for row, inputs in enumerate(rows(2)):
        best = np.argsort(-log_probabilities(table(4), inputs, ()), kind="stable")[:12]
        # what has ended comes first, if it is among the best twice as many
        expected = sorted(best, key=lambda token: token != END)[:6]
        np.testing.assert_array_equal(found.tokens[row, :, 0], expected)
