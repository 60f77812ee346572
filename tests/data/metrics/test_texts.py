"""Translations, summaries, completions: against published numbers and plain implementations of the definitions."""

from __future__ import annotations

from typing import Any

import pytest

from t5xpg.data.metrics import bleu, chrf, edit_similarity, exact_match, next_line, rouge


def scored(metric: Any, *texts: Any, **options: Any) -> tuple[float, str]:
    found = metric(*texts, **options)
    return found[metric.__name__], found[f"{metric.__name__}_signature"].textdata


# The example of sacrebleu's README, with two references each.
REFERENCES = [
    ["The dog bit the man.", "The dog had bit the man."],
    ["It was not unexpected.", "No one was surprised."],
    ["The man bit him first.", "The man had bitten the dog."],
]
HYPOTHESES = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]


def test_the_published_example_of_sacrebleu() -> None:
    score, signature = scored(bleu, REFERENCES, HYPOTHESES, tokenize="13a")
    assert score == pytest.approx(48.53, abs=0.005)
    assert signature.startswith("nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    score, signature = scored(chrf, REFERENCES, HYPOTHESES)
    assert score == pytest.approx(59.73, abs=0.005)
    assert signature.startswith("nrefs:2|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_examples_may_have_different_numbers_of_references() -> None:
    fewer = [REFERENCES[0], REFERENCES[1], REFERENCES[2][0]]
    again = [*REFERENCES[:2], [REFERENCES[2][0]] * 2]
    found, signature = scored(bleu, fewer, HYPOTHESES)
    assert found == pytest.approx(scored(bleu, again, HYPOTHESES)[0])
    assert "nrefs:var" in signature
    assert "tok:intl" in signature


def test_the_published_example_of_rouge_score() -> None:
    """Of its 9 and 8 words 6 are common; of the 8 and 7 pairs 2; the longest common subsequence has 5."""
    assert rouge(
        ["The quick brown fox jumps over the lazy dog"], ["The quick brown dog jumps on the log."]
    ) == pytest.approx({"rouge1": 1200 / 17, "rouge2": 400 / 15, "rougeLsum": 1000 / 17})


def test_empty_predictions_and_targets() -> None:
    for metric in (bleu, chrf):
        assert scored(metric, ["a b c d e", "f"], ["", ""])[0] == 0.0
        assert scored(metric, ["a b c d e", ""], ["a b c d e", ""])[0] == pytest.approx(100.0)
    assert rouge(["a b"], [""]) == {"rouge1": 0.0, "rouge2": 0.0, "rougeLsum": 0.0}
    assert edit_similarity(["", "a", ""], ["", "", "b"]) == {"edit_similarity": pytest.approx(100 / 3)}


def test_rouge_takes_the_best_reference_and_lines() -> None:
    assert rouge([["x y", "a b c"]], ["A, b c!"]) == {"rouge1": 100.0, "rouge2": 100.0, "rougeLsum": 100.0}
    # " . " ends a line: the order of the sentences does not matter to rougeLsum
    assert rouge(["a b . c d"], ["c d . a b"])["rougeLsum"] == 100.0
    assert rouge(["the dogs ran"], ["the dog ran"], use_stemmer=True)["rouge1"] == 100.0


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
