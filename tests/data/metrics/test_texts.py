"""Translations, summaries, completions: against published numbers and plain implementations of the definitions."""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5xpg.data.metrics import bleu, chrf, edit_similarity, exact_match, next_line, rouge


def corpus_bleu(*texts: Any, **options: Any) -> tuple[float, str]:
    found = bleu(*texts, **options)
    return found["bleu"], found["bleu_signature"].textdata


def corpus_chrf(*texts: Any) -> tuple[float, str]:
    found = chrf(*texts)
    return found["chrf"], found["chrf_signature"].textdata


# The example of sacrebleu's README, with two references each.
REFERENCES = [
    ["The dog bit the man.", "The dog had bit the man."],
    ["It was not unexpected.", "No one was surprised."],
    ["The man bit him first.", "The man had bitten the dog."],
]
HYPOTHESES = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]


def test_the_published_example_of_sacrebleu() -> None:
    score, signature = corpus_bleu(REFERENCES, HYPOTHESES, tokenize="13a")
    assert score == pytest.approx(48.53, abs=0.005)
    assert signature.startswith("nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    score, signature = corpus_chrf(REFERENCES, HYPOTHESES)
    assert score == pytest.approx(59.73, abs=0.005)
    assert signature.startswith("nrefs:2|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def plain_bleu(references: Sequence[Sequence[str]], predictions: Sequence[str]) -> float:
    """Corpus BLEU of words that spaces divide (Papineni et al. 2002), without smoothing."""
    matches, totals = [0] * 4, [0] * 4
    length = reference_length = 0
    for texts, prediction in zip(references, predictions, strict=True):
        words, others = prediction.split(), [text.split() for text in texts]
        length += len(words)
        reference_length += min((abs(len(other) - len(words)), len(other)) for other in others)[1]
        for n in range(1, 5):
            counts = grams(words, n)
            most: collections.Counter[tuple[str, ...]] = collections.Counter()
            for other in others:
                most |= grams(other, n)
            matches[n - 1] += sum((counts & most).values())
            totals[n - 1] += sum(counts.values())
    mean = sum(math.log(match / total) for match, total in zip(matches, totals, strict=True)) / 4
    return 100 * math.exp(mean + min(0.0, 1 - reference_length / length))


def grams(words: Sequence[str], n: int) -> collections.Counter[tuple[str, ...]]:
    return collections.Counter(tuple(words[place : place + n]) for place in range(len(words) - n + 1))


def made_up(count: int) -> tuple[list[list[str]], list[str]]:
    """Sentences with one to three references, and predictions near them."""
    draw = random.Random(3)
    words = ["the", "dog", "cat", "sees", "finds", "house", "river", "and", "garden"]
    references, predictions = [], []
    for _ in range(count):
        first = draw.choices(words, k=draw.randrange(6, 15))
        texts = [[word if draw.random() < 0.8 else draw.choice(words) for word in first] for _ in range(4)]
        references.append([" ".join(text) for text in texts[: draw.randrange(1, 4)]])
        predictions.append(" ".join(texts[3][: draw.randrange(5, 16)]))
    return references, predictions


def test_bleu_is_the_definition() -> None:
    references, predictions = made_up(50)
    expected = plain_bleu(references, predictions)
    assert 10 < expected < 90
    found, signature = corpus_bleu(references, predictions)
    assert found == pytest.approx(expected, abs=1e-6)
    assert "nrefs:var" in signature
    assert "tok:intl" in signature
    single = [texts[0] for texts in references]
    assert corpus_bleu(single, predictions)[0] == pytest.approx(plain_bleu([[one] for one in single], predictions))


def test_empty_predictions_and_targets() -> None:
    for score in (corpus_bleu, corpus_chrf):
        assert score(["a b c d e", "f"], ["", ""])[0] == 0.0
        assert score(["a b c d e", ""], ["a b c d e", ""])[0] == pytest.approx(100.0)
    assert rouge(["a b"], [""]) == {"rouge1": 0.0, "rouge2": 0.0, "rougeLsum": 0.0}
    assert edit_similarity(["", "a", ""], ["", "", "b"]) == {"edit_similarity": pytest.approx(100 / 3)}


def plain_rouge(reference: str, prediction: str) -> dict[str, float]:
    """F measures of 1-grams, 2-grams and the union of longest common subsequences of lines (Lin 2004)."""

    def f(common: int, expected: int, found: int) -> float:
        return 2 * common / (expected + found) if common else 0.0

    scores = {}
    for n in (1, 2):
        expected, found = grams(reference.split(), n), grams(prediction.split(), n)
        scores[f"rouge{n}"] = f(sum((expected & found).values()), sum(expected.values()), sum(found.values()))
    left = collections.Counter(reference.split()), collections.Counter(prediction.split())
    hits = 0
    for line in reference.split("\n"):
        words = line.split()
        union = set().union(*(common_places(words, other.split()) for other in prediction.split("\n")))
        for place in sorted(union):
            if left[0][words[place]] > 0 and left[1][words[place]] > 0:
                hits += 1
                left[0][words[place]] -= 1
                left[1][words[place]] -= 1
    scores["rougeLsum"] = f(hits, len(reference.split()), len(prediction.split()))
    return scores


def common_places(words: Sequence[str], others: Sequence[str]) -> set[int]:
    """Where in `words` its longest common subsequence with `others` lies, from the end on."""
    table = [[0] * (len(others) + 1) for _ in range(len(words) + 1)]
    for i, word in enumerate(words, start=1):
        for j, other in enumerate(others, start=1):
            table[i][j] = table[i - 1][j - 1] + 1 if word == other else max(table[i - 1][j], table[i][j - 1])
    places, i, j = set(), len(words), len(others)
    while i and j:
        if words[i - 1] == others[j - 1]:
            i, j = i - 1, j - 1
            places.add(i)
        elif table[i][j - 1] > table[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return places


def test_rouge_is_the_definition() -> None:
    references, predictions = made_up(40)
    texts = [refs[0].replace(" and ", "\n") for refs in references]
    predictions = [text.replace(" and ", "\n") for text in predictions]
    expected = [plain_rouge(text, prediction) for text, prediction in zip(texts, predictions, strict=True)]
    found = rouge(texts, predictions)
    for kind in ("rouge1", "rouge2", "rougeLsum"):
        assert found[kind] == pytest.approx(100 * sum(one[kind] for one in expected) / len(expected), abs=1e-9), kind
    # the example of rouge-score's README has 6 of 9 and 8 words in common
    assert rouge(
        ["The quick brown fox jumps over the lazy dog"], ["The quick brown dog jumps on the log."]
    ) == pytest.approx({"rouge1": 1200 / 17, "rouge2": 400 / 15, "rougeLsum": 1000 / 17})


def test_rouge_takes_the_best_reference_and_lines() -> None:
    assert rouge([["x y", "a b c"]], ["A, b c!"]) == {"rouge1": 100.0, "rouge2": 100.0, "rougeLsum": 100.0}
    # " . " ends a line: the order of the sentences does not matter to rougeLsum
    assert rouge(["a b . c d"], ["c d . a b"])["rougeLsum"] == 100.0
    assert rouge(["the dogs ran"], ["the dog ran"], use_stemmer=True)["rouge1"] == 100.0


def levenshtein(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, start=1):
        before, row[0] = row[0], i
        for j, right in enumerate(other, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]


def test_known_edit_similarities() -> None:
    assert edit_similarity(["kitten"], ["sitting"]) == {"edit_similarity": pytest.approx(100 * (1 - 3 / 7))}
    assert edit_similarity([["abc", "abd"]], ["abd"]) == {"edit_similarity": 100.0}
    assert edit_similarity(["ä😀"], ["a😀"]) == {"edit_similarity": 50.0}  # characters, not bytes


def test_lines_beside_what_needs_no_model() -> None:
    targets = [{"line": line, "before": before} for line, before in [("a = 1", "x"), ("b", "b"), ("a = 1", "a = 2")]]
    lines, said = ["a = 1", "b", "a = 1"], ["a = 1", "c", ""]
    measured = next_line(targets, said)
    for whose, answers in (("", said), ("_of_line_before", ["x", "b", "a = 2"]), ("_of_one_line", ["a = 1"] * 3)):
        expected = {**exact_match(lines, answers), **edit_similarity(lines, answers)}
        assert {name: measured.pop(f"{name}{whose}") for name in expected} == expected
    assert measured == {}
    assert next_line(targets, said)["exact_match_of_one_line"] == pytest.approx(200 / 3)
    with pytest.raises(ValueError, match="3 targets and 1 outputs"):
        next_line(targets, ["a"])


@settings(max_examples=60)
@given(st.text("abcä😀 ", max_size=8), st.text("abcä😀 ", max_size=8))
def test_edit_similarity_is_the_definition(one: str, other: str) -> None:
    expected = 100 * (1 - levenshtein(one, other) / max(len(one), len(other), 1))
    assert edit_similarity([one], [other])["edit_similarity"] == pytest.approx(expected)
    assert edit_similarity([other], [one])["edit_similarity"] == pytest.approx(expected)
    assert edit_similarity([one], [one])["edit_similarity"] == 100.0
