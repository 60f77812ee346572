"""Samples ranked by how much they are like each other."""

import itertools
from typing import Any

import numpy as np
import pytest

from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.consensus import mean_similarities, rank_sequences
from t5xpg.evaluate.predictor import Predictor
from t5xpg.models.decoding import Decoded, DecodingConfig
from t5xpg.models.decoding.config import CONSENSUS
from tests.refusals import refused

TEXTS = ["abcd", "abce", "  abcf", "zzzz", "abcd"]


def edit_distance(one: str, other: str) -> int:
    """Levenshtein's by its definition."""
    if not one or not other:
        return len(one) + len(other)
    replaced = edit_distance(one[1:], other[1:]) + (one[0] != other[0])
    return min(replaced, edit_distance(one[1:], other) + 1, edit_distance(one, other[1:]) + 1)


def test_means_are_over_all_samples() -> None:
    def alike(one: str, other: str) -> float:
        return 1 - edit_distance(one, other) / max(len(one), len(other))

    expected = [100 * sum(alike(one, other) for other in TEXTS) / len(TEXTS) for one in TEXTS]
    assert mean_similarities(TEXTS) == pytest.approx(expected)
    assert mean_similarities(["", "", "a"]) == pytest.approx([200 / 3, 200 / 3, 100 / 3])


def found(rows: list[list[str]]) -> Decoded:
    vocabulary = Vocabulary()
    tokens: Any = np.zeros((len(rows), len(rows[0]), 8), np.int32)
    for row, sample in itertools.product(range(len(rows)), range(len(rows[0]))):
        ids = [*vocabulary.encode(rows[row][sample]), vocabulary.eos_id]
        tokens[row, sample, : len(ids)] = ids
    scores: Any = -np.arange(float(tokens[..., 0].size)).reshape(tokens.shape[:2])
    return Decoded(tokens, scores)


def test_the_sample_that_is_most_like_the_others_is_the_first() -> None:
    one = found([TEXTS, ["zzzz", "abcd", "abcd", "", "z"]])
    config = DecodingConfig("sample", num_decodes=5, ranked_by=CONSENSUS)
    several = rank_sequences(one, config, Vocabulary())
    texts = [[Vocabulary().decode(sample) for sample in row] for row in several.tokens]
    # without the spaces around them the first three of the first row are one letter apart; the likelier equal is first
    assert texts[0] == ["abcd", "abcd", "abce", "  abcf", "zzzz"]
    assert texts[1][:2] == ["abcd", "abcd"]
    assert several.scores is not None
    assert several.scores[0].tolist() == [0, -4, -1, -2, -3]
    best = DecodingConfig("sample", num_decodes=5, ranked_by=CONSENSUS, return_all_decodes=False)
    assert (best.returned, best.ranked) == (1, 5)
    np.testing.assert_array_equal(rank_sequences(one, best, Vocabulary()).tokens, several.tokens[:, :1])


def test_a_predictor_answers_with_it() -> None:
    predictor = object.__new__(Predictor)  # of a decoder that has found these samples
    predictor.vocabulary, predictor.parameters = Vocabulary(), None
    predictor.decoding = DecodingConfig("sample", num_decodes=5, ranked_by=CONSENSUS, return_all_decodes=False)
    predictor._decode = lambda parameters, inputs, row_numbers: found([["zzzz", "abcd", "abce", "abcd", "z"]])
    assert [answer.texts for answer in predictor.answers(np.zeros((1, 4), np.int32))] == [["abcd"]]


def test_other_methods_keep_their_order() -> None:
    one = found([TEXTS])
    assert rank_sequences(one, DecodingConfig("sample", num_decodes=5), Vocabulary()) is one
    for method, ranked_by, *named in (("beam", CONSENSUS, "'sample'"), ("sample", "consenus", "'consenus'", CONSENSUS)):
        with refused("ranked_by", *named):
            DecodingConfig(method, ranked_by=ranked_by)
