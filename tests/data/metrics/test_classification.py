from __future__ import annotations

import pytest

from t5xpg.data.metrics import accuracy, macro_f1, majority


def test_accuracy_of_texts_and_numbers() -> None:
    assert accuracy(["good", "bad", "bad", "good"], ["good", "bad", "good", "what?"]) == {"accuracy": 50.0}
    assert accuracy([0, 1, 2], [0, 1, -1]) == {"accuracy": pytest.approx(200 / 3)}
    assert accuracy([0, 1], ["a text", 1]) == {"accuracy": 50.0}


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
    assert macro_f1(targets, predictions) == {"macro_f1": pytest.approx(expected)}
    # a class of its own for what is no class would lower it
    assert expected > plain_macro_f1(targets, predictions, ["a", "b", "c", "none of them"])
    expected = plain_macro_f1(targets, predictions, ["a", "b", "c", "d"])
    assert macro_f1(targets, predictions, labels=["a", "b", "c", "d"]) == {"macro_f1": pytest.approx(expected)}


def test_the_majority_is_what_always_the_same_answer_gets() -> None:
    assert majority(["a", "b", "a", "c"], ["c"] * 4) == {"majority": 50.0}


def test_bounds() -> None:
    assert macro_f1(["a", "b", "ß"], ["a", "b", "ß"]) == {"macro_f1": 100.0}
    assert macro_f1(["a", "b"], ["", ""]) == {"macro_f1": 0.0}
    for metric in (accuracy, macro_f1, majority):
        with pytest.raises(ValueError, match="There are no examples"):
            metric([], [])
