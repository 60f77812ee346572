"""Metrics: against the official scripts' definitions, published numbers and plain implementations."""

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import t5.evaluation.metrics
from hypothesis import assume, given
from hypothesis import strategies as st
from t5.data import postprocessors
from t5.evaluation import qa_utils

from t5xpg.data import metrics
from tests.refusals import assert_named

METRICS = [metrics.exact_match, metrics.token_f1, metrics.squad, metrics.trivia_qa]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORDS = ["an", "\u2018quoted\u2019", "X\u00b4Y", "the", "Paris", "paris,", "France.", "1,000", "é", "well-known"]
PHRASES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(lambda words: " ".join([*words, "thing"]))


@pytest.mark.parametrize("metric", [metrics.squad, metrics.trivia_qa])
@given(asked=st.lists(st.tuples(st.lists(PHRASES, min_size=1, max_size=3), PHRASES), min_size=1, max_size=20))
def test_metrics_are_those_of_the_official_scripts(
    metric: Callable[..., Any], asked: list[tuple[list[str], str]]
) -> None:
    normalize = getattr(qa_utils, f"normalize_{metric.__name__}")
    answers, predictions = map(list, zip(*asked, strict=True))
    expected = qa_utils.qa_metrics([[*map(normalize, texts)] for texts in answers], [*map(normalize, predictions)])
    assert metric(answers, predictions) == pytest.approx(expected, abs=1e-9)


def test_answers_of_which_nothing_is_left() -> None:
    """Of empty texts, as the scripts of SQuAD 2.0 and TriviaQA count them."""
    # no answer: nothing is to be predicted; answers of which nothing is left do not count beside others
    assert metrics.squad(["", ""], ["", "Paris"]) == {"em": 50.0, "f1": 50.0}
    assert metrics.squad([["The", "Paris"]], ["a"]) == {"em": 0.0, "f1": 0.0}
    # texts of which nothing is left have no word in common
    assert metrics.trivia_qa(["The", "Sun"], ["a", "sun"]) == {"em": 100.0, "f1": 50.0}


def test_words_and_exact_matches() -> None:
    assert metrics.token_f1([["a b c", "c d"], "x"], ["c d e", "y"]) == {"token_f1": pytest.approx(40.0)}
    assert metrics.token_f1(["The cat"], ["the cat"]) == {"token_f1": 50.0}  # as they are
    found = metrics.exact_match([["one", "two"], "three", "é"], ["two", "Three", "e\u0301"])
    assert found == {"exact_match": pytest.approx(100 / 3)}


@pytest.mark.parametrize("metric", METRICS)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), others=st.lists(TEXTS, min_size=4, max_size=4))
def test_properties(metric: Callable[..., Any], texts: list[str], others: list[str]) -> None:
    same = metric([*texts, "x"], [*texts, "x"])  # TriviaQA's F1 of empty texts is 0
    assert all(value == 100.0 or (name == "f1" and metric is metrics.trivia_qa) for name, value in same.items())
    others = others[: len(texts)]
    there, back = metric(texts, others), metric(others, texts)
    assert there == pytest.approx(back)
    assert all(0.0 <= value <= 100.0 for value in there.values())
    # another reference never harms
    more = metric([[text, other] for text, other in zip(texts, others, strict=True)], others)
    assert all(more[name] >= there[name] for name in there if metric is not metrics.squad)


@pytest.mark.parametrize("metric", METRICS)
def test_what_cannot_be_measured(metric: Callable[..., Any]) -> None:
    unusable = ([], [], "no examples"), (["a", "b"], ["a"], "2 targets and 1"), ([[]], ["a"], "no reference")
    for targets, predictions, message in unusable:
        with pytest.raises(ValueError, match=message):
            metric(targets, predictions)


def test_bounds_of_classes_and_likelihoods() -> None:
    assert metrics.macro_f1(["a", "b", "ß"], ["a", "b", "ß"]) == {"macro_f1": 100.0}
    assert metrics.macro_f1(["a", "b"], ["", ""]) == {"macro_f1": 0.0}
    found = metrics.perplexity(["x"], [-1e6])
    assert found["byte_perplexity"] == found["word_perplexity"] == math.inf
    for metric in (metrics.accuracy, metrics.macro_f1, metrics.perplexity):
        with pytest.raises(ValueError, match="no examples"):
            metric([], [])
    with pytest.raises(ValueError, match="empty"):
        metrics.perplexity(["", ""], [-1.0, -1.0])


def test_accuracy_of_texts_and_numbers() -> None:
    assert metrics.accuracy(["good", "bad", "bad", "good"], ["good", "bad", "good", "what?"]) == {"accuracy": 50.0}
    assert metrics.accuracy([0, 1, 2], [0, 1, -1]) == {"accuracy": pytest.approx(200 / 3)}
    assert metrics.accuracy([0, 1], ["a text", 1]) == {"accuracy": 50.0}


def plain_macro_f1(targets: list[str], predictions: list[str], labels: list[str]) -> float:
    total = 0.0
    for label in labels:
        hits = sum(t == p == label for t, p in zip(targets, predictions, strict=True))
        either = targets.count(label) + predictions.count(label)
        total += 2 * hits / either if either else 0.0
    return 100 * total / len(labels)


def test_macro_f1_is_the_definition() -> None:
    targets = ["a"] * 6 + ["b"] * 3 + ["c"]
    predictions = ["a", "a", "b", "a", "a", "c", "b", "b", "none of them", "a"]
    expected = plain_macro_f1(targets, predictions, ["a", "b", "c"])
    assert metrics.macro_f1(targets, predictions) == {"macro_f1": pytest.approx(expected)}
    # a class of its own for what is no class would lower it
    assert expected > plain_macro_f1(targets, predictions, ["a", "b", "c", "none of them"])
    expected = plain_macro_f1(targets, predictions, ["a", "b", "c", "d"])
    assert metrics.macro_f1(targets, predictions, labels=["a", "b", "c", "d"]) == {"macro_f1": pytest.approx(expected)}


def test_sums_are_divided_by_bytes_and_words() -> None:
    found = metrics.perplexity(["ab c", "é"], np.array([-2.0, -4.0], np.float32))  # 6 bytes, 3 words
    of_bytes = {"nats_per_byte": 1.0, "bits_per_byte": 1 / math.log(2), "byte_perplexity": math.e}
    assert found == pytest.approx(of_bytes | {"word_perplexity": math.exp(2.0)})


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
    score, signature = scored(metrics.bleu, REFERENCES, HYPOTHESES, tokenize="13a")
    assert score == pytest.approx(48.53, abs=0.005)
    assert "tok:13a" in signature
    assert scored(metrics.chrf, REFERENCES, HYPOTHESES)[0] == pytest.approx(59.73, abs=0.005)


def test_examples_may_have_different_numbers_of_references() -> None:
    fewer, again = ([*REFERENCES[:2], last] for last in (REFERENCES[2][0], [REFERENCES[2][0]] * 2))
    found, signature = scored(metrics.bleu, fewer, HYPOTHESES)
    assert found == pytest.approx(scored(metrics.bleu, again, HYPOTHESES)[0])
    assert_named(signature, ["nrefs:var", "tok:intl"])


def test_the_published_example_of_rouge_score() -> None:
    """Of its 9 and 8 words 6 are common; of the 8 and 7 pairs 2; the longest common subsequence has 5."""
    pair = ["The quick brown fox jumps over the lazy dog"], ["The quick brown dog jumps on the log."]
    assert metrics.rouge(*pair) == pytest.approx({"rouge1": 1200 / 17, "rouge2": 400 / 15, "rougeLsum": 1000 / 17})


def test_empty_predictions_and_targets() -> None:
    for metric in (metrics.bleu, metrics.chrf):
        assert scored(metric, ["a b c d e", "f"], ["", ""])[0] == 0.0
        assert scored(metric, ["a b c d e", ""], ["a b c d e", ""])[0] == pytest.approx(100.0)
    assert metrics.rouge(["a b"], [""]) == {"rouge1": 0.0, "rouge2": 0.0, "rougeLsum": 0.0}
    assert metrics.edit_similarity(["", "a", ""], ["", "", "b"]) == {"edit_similarity": pytest.approx(100 / 3)}


def test_rouge_takes_the_best_reference_and_lines() -> None:
    assert metrics.rouge([["x y", "a b c"]], ["A, b c!"]) == {"rouge1": 100.0, "rouge2": 100.0, "rougeLsum": 100.0}
    # " . " ends a line: the order of the sentences does not matter to rougeLsum
    assert metrics.rouge(["a b . c d"], ["c d . a b"])["rougeLsum"] == 100.0
    assert metrics.rouge(["the dogs ran"], ["the dog ran"], use_stemmer=True)["rouge1"] == 100.0


def test_known_edit_similarities() -> None:
    assert metrics.edit_similarity(["kitten"], ["sitting"]) == {"edit_similarity": pytest.approx(100 * (1 - 3 / 7))}
    assert metrics.edit_similarity([["abc", "abd"]], ["abd"]) == {"edit_similarity": 100.0}
    assert metrics.edit_similarity(["ä😀"], ["a😀"]) == {"edit_similarity": 50.0}  # characters, not bytes


def test_the_scripts_of_papers_print_the_same() -> None:
    """goldens/metrics/printed.json: predictions, and what multi-bleu.perl and CodeXGLUE's evaluator print for them."""
    cases = json.loads((Path(__file__).parents[1] / "goldens" / "metrics" / "printed.json").read_text("utf-8"))["cases"]
    assert len(cases) == 7
    for case in cases:
        script, pair = case["script"], (case["targets"], case["predictions"])
        if script == "CodeXGLUE evaluator.py":
            found = metrics.codexglue(*pair)
            shown = f"BLEU: {round(found['codexglue_bleu'], 2)} ; Acc: {round(found['codexglue_exact_match'], 2)}"
        else:
            lowered = metrics.token_bleu(*pair, lowercase=script.endswith(" -lc"))
            shown = f"BLEU = {lowered['token_bleu']:.2f}, {lowered['token_bleu_parts'].textdata}"
        assert shown == case["printed"]
    assert metrics.codexglue(["a"], [""]) == {"codexglue_bleu": 0.0, "codexglue_exact_match": 0.0}


CLASSES = st.sampled_from(["acceptable", "unacceptable", "5", ""])


@given(st.lists(st.tuples(CLASSES, CLASSES), min_size=1, max_size=40))
def test_correlation_of_classes_is_that_of_their_indicators(pairs: list[tuple[str, str]]) -> None:
    """Covariances of one-hot classes; and scikit-learn's number, which T5 takes, too."""
    targets, predictions = map(list, zip(*pairs, strict=True))
    classes = sorted({*targets, *predictions})
    one_hot = [
        np.array([[label == one for one in classes] for label in labels], float) for labels in (targets, predictions)
    ]
    x, y = (rows - rows.mean(0) for rows in one_hot)
    norm = math.sqrt((x * x).sum() * (y * y).sum())
    expected = 100 * (x * y).sum() / norm if norm > 1e-12 else 0.0
    found = metrics.matthews_corrcoef(targets, predictions)["matthews_corrcoef"]
    assert found == pytest.approx(expected, abs=1e-9)
    numbers = [[classes.index(label) for label in labels] for labels in (targets, predictions)]
    with warnings.catch_warnings(action="ignore"):  # of a single class
        assert found == pytest.approx(100 * sklearn.metrics.matthews_corrcoef(*numbers), abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=2, max_size=40))
def test_correlation_of_numbers_is_that_of_t5(pairs: list[tuple[float, float]]) -> None:
    expected, found = map(list, zip(*pairs, strict=True))
    assume(np.std(expected) > 1e-3 and np.std(found) > 1e-3)
    reference = t5.evaluation.metrics.pearson_corrcoef(expected, found)
    written = metrics.pearson_corrcoef([*map(str, expected)], [*map(str, found)])
    assert written == pytest.approx(reference, abs=1e-6)


def test_predictions_that_are_no_numbers() -> None:
    """As T5's postprocessor reads them."""
    texts = ["0.2", "4.8", "three", "nan", "", "2"]
    targets = ["1", "5", "3", "0", "1", "2"]
    read = [postprocessors.string_to_float(text) if text != "nan" else -1.0 for text in texts]
    reference = t5.evaluation.metrics.pearson_corrcoef([*map(float, targets)], read)
    assert metrics.pearson_corrcoef(targets, texts) == pytest.approx(reference, abs=1e-9)
    assert metrics.pearson_corrcoef(targets, ["x"] * 6) == {"pearson_corrcoef": 0.0}
