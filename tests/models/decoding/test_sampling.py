"""Sampling: what is left out of the logits, against NumPy; what a sample depends on, and what it does not."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.decoding import Decoded, DecodingConfig, decode, greedy, sample
from t5xpg.models.decoding.sampling import filtered_logits
from t5xpg.models.rng import stream_key
from tests.models.decoding.automaton import END, VOCABULARY, Automaton, log_probabilities, rows, table

LENGTH = 8
Distribution = functools.partial(DecodingConfig, "sample")
GREEDY = jax.jit(functools.partial(greedy, Automaton(), max_decode_length=LENGTH))


@functools.cache
def compiled(distribution: DecodingConfig, samples: int, seed: int) -> Any:
    def run(params: jax.Array, inputs: jax.Array, row_numbers: jax.Array) -> Decoded:
        config = dataclasses.replace(distribution, num_decodes=samples, seed=seed)
        return sample(Automaton(), params, inputs, LENGTH, config, row_numbers, eos_id=END)

    return jax.jit(run)


def drawn(
    inputs: np.ndarray, distribution: DecodingConfig, samples: int = 2, seed: int = 0, numbers: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(len(inputs), dtype=np.int32) if numbers is None else np.asarray(numbers, np.int32)
    found = compiled(distribution, samples, seed)(jnp.asarray(table(0)), jnp.asarray(inputs), jnp.asarray(numbers))
    return np.asarray(found.tokens), np.asarray(found.scores)


def numpy_filter(logits: np.ndarray, temperature: float, k: int, p: float) -> np.ndarray:
    """T5X's order, by sorting: temperature, the k largest, of those the fewest with p together; equals stay."""
    logits = (logits / np.float32(temperature)).astype(np.float32)
    if k:
        last = np.sort(logits)[::-1][min(k, len(logits)) - 1]
        logits = np.where(logits >= last, logits, -np.inf).astype(np.float32)
    if 0 < p < 1:
        shifted = np.exp(logits.astype(np.float64) - logits.max())
        probabilities = shifted / shifted.sum()
        order = np.argsort(-probabilities, kind="stable")
        count = int(np.searchsorted(np.cumsum(probabilities[order]), p)) + 1
        logits = np.where(logits >= logits[order[min(count, len(order)) - 1]], logits, -np.inf).astype(np.float32)
    return logits


@pytest.mark.parametrize(
    ("temperature", "k", "p"),
    [(1.0, 0, 1.0), (4.0, 1, 1.0), (0.5, 5, 1.0), (1.0, 0, 0.3), (4.0, 0, 0.9), (0.5, 40, 0.5), (1.0, 500, 0.05)],
)
def test_what_is_left_out(temperature: float, k: int, p: float) -> None:
    logits = np.random.default_rng(k).normal(size=(3, 2, 97)).astype(np.float32) * 3
    logits[0, 0, 10:13] = logits[0, 0].max() + 1  # equal ones stay together
    logits[0, 1] = 0.25
    logits[1, 0] -= 100.0
    config = Distribution(temperature=temperature, topk=k, topp=p)
    found = np.asarray(jax.jit(functools.partial(filtered_logits, config=config))(jnp.asarray(logits)))
    expected = np.stack([[numpy_filter(row, temperature, k, p) for row in rows] for rows in logits])
    np.testing.assert_array_equal(found, expected)


def test_what_is_drawn_is_gumbels_choice_of_what_is_left() -> None:
    """Token by token, with keys made anew from seed, row, sample and position."""
    inputs, numbers = rows(3), [7, 1, 100_000]
    distribution = Distribution(temperature=0.8, topk=6, topp=0.9)
    tokens, scores = drawn(inputs, distribution, samples=2, seed=5, numbers=numbers)
    for row, number in enumerate(numbers):
        expected = []
        for index in range(2):
            key = jax.random.fold_in(jax.random.fold_in(stream_key(5, "decoding"), number), index)
            sequence: list[int] = []
            total = 0.0
            for step in range(LENGTH):
                logits = log_probabilities(table(0), inputs[row], sequence).astype(np.float32)
                left = numpy_filter(logits, 0.8, 6, 0.9)
                noise = jax.random.gumbel(jax.random.fold_in(key, step), (VOCABULARY,))
                token = int(np.argmax(left + np.asarray(noise)))
                total += float(left[token] - np.log(np.exp(left.astype(np.float64)).sum()))
                sequence.append(token)
                if token == END:
                    break
            expected.append((total, sequence))
        expected.sort(key=lambda one: -one[0])
        for place, (total, sequence) in enumerate(expected):
            np.testing.assert_array_equal(tokens[row, place], np.pad(sequence, (0, LENGTH - len(sequence))))
            np.testing.assert_allclose(scores[row, place], total, rtol=1e-4, atol=1e-5)


def test_a_row_is_drawn_alike_wherever_it_stands() -> None:
    inputs = rows(6)
    distribution = Distribution(topp=0.95)
    tokens, scores = drawn(inputs, distribution, numbers=range(6))
    wider = np.pad(inputs[[4, 2]], ((0, 3), (0, 5)))
    others, other_scores = drawn(wider, distribution, numbers=[4, 2, 0, 1, 3])
    np.testing.assert_array_equal(others[:2], tokens[[4, 2]])
    np.testing.assert_array_equal(other_scores[:2], scores[[4, 2]])
    assert not others[2:].any()
    assert not other_scores[2:].any()


def test_seeds_rows_and_samples_differ() -> None:
    same = np.repeat(rows(1), 4, axis=0)
    tokens, _ = drawn(same, Distribution(), samples=3)
    assert len({sequence.tobytes() for sequence in tokens.reshape(-1, LENGTH)}) == 12
    again, _ = drawn(same, Distribution(), samples=3)
    np.testing.assert_array_equal(again, tokens)
    other, _ = drawn(same, Distribution(), samples=3, seed=1)
    assert not (other == tokens).all(axis=2).any()
    # more samples leave those of before
    more, _ = drawn(same, Distribution(), samples=5)
    for row in range(4):
        assert {one.tobytes() for one in tokens[row]} < {one.tobytes() for one in more[row]}


@pytest.mark.parametrize("distribution", [Distribution(temperature=0.0), Distribution(topk=1)])
def test_nothing_left_to_chance_is_greedy(distribution: DecodingConfig) -> None:
    inputs = rows(5)
    expected = GREEDY(jnp.asarray(table(0)), inputs)
    tokens, scores = drawn(inputs, distribution)
    np.testing.assert_array_equal(tokens, np.repeat(np.asarray(expected)[:, None], 2, axis=1))
    np.testing.assert_allclose(scores, 0.0, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_scores_of_the_models_own_distribution(temperature: float) -> None:
    inputs = rows(4)
    tokens, scores = drawn(inputs, Distribution(temperature=temperature, rescale_log_probs=False), samples=3)
    assert (np.diff(scores, axis=1) <= 0).all()
    for row in range(4):
        for sequence, score in zip(tokens[row], scores[row], strict=True):
            length = list(sequence).index(END) + 1 if END in sequence else LENGTH
            parts = [log_probabilities(table(0), inputs[row], sequence[:at])[sequence[at]] for at in range(length)]
            np.testing.assert_allclose(score, sum(parts), rtol=1e-4)
            assert not sequence[length:].any()


@pytest.mark.parametrize(("ranked_by", "kept"), [("likelihood", 1), ("consensus", 3)])
def test_all_samples_are_kept_where_a_consensus_ranks_them(ranked_by: str, kept: int) -> None:
    config = Distribution(num_decodes=3, return_all_decodes=False, ranked_by=ranked_by)
    found = jax.eval_shape(lambda: decode(Automaton(), jnp.asarray(table(0)), jnp.asarray(rows(2)), config, LENGTH))
    assert found.tokens.shape == (2, kept, LENGTH)
