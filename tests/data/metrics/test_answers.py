"""Answers: against the official scripts' definitions as `t5` has them, and what any such metric must do."""

from __future__ import annotations

import importlib.util
import random
import runpy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5xpg.data.metrics import exact_match, squad, token_f1, trivia_qa

METRICS = [exact_match, token_f1, squad, trivia_qa]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORDS = ["an", "\u2018quoted\u2019", "X\u00b4Y", "the", "Paris", "paris,", "France.", "1,000", "é", "well-known"]


@pytest.fixture(scope="module")
def reference() -> SimpleNamespace:
    """`t5.evaluation.qa_utils`, without the package around it, which imports TensorFlow."""
    package = importlib.util.find_spec("t5")
    assert package is not None
    assert package.submodule_search_locations is not None
    return SimpleNamespace(**runpy.run_path(f"{package.submodule_search_locations[0]}/evaluation/qa_utils.py"))


def made_up(count: int) -> tuple[list[list[str]], list[str]]:
    """Questions with one to three answers, and predictions that share words with them."""
    draw = random.Random(5)

    def text() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randrange(1, 6))) + " thing"

    answers = [[text() for _ in range(draw.randrange(1, 4))] for _ in range(count)]
    predictions = [draw.choice(answer).lower() if draw.random() < 0.3 else text() for answer in answers]
    return answers, predictions


@pytest.mark.parametrize("metric", [squad, trivia_qa])
def test_metrics_are_those_of_the_official_scripts(reference: SimpleNamespace, metric: Callable[..., Any]) -> None:
    answers, predictions = made_up(200)
    normalize = getattr(reference, f"normalize_{metric.__name__}")
    expected = reference.qa_metrics(
        [list(map(normalize, answer)) for answer in answers], list(map(normalize, predictions))
    )
    assert metric(answers, predictions) == pytest.approx(expected, abs=1e-9)
    assert 0 < expected["em"] < expected["f1"] < 100
    assert squad(answers, predictions) != pytest.approx(trivia_qa(answers, predictions), abs=1e-9)


def test_known_answers() -> None:
    """By hand, as the scripts of SQuAD 2.0 and TriviaQA count them."""
    assert squad([["Denver Broncos", "The Broncos"]], ["the Denver Broncos!"]) == {"em": 100.0, "f1": 100.0}
    assert squad(["Santa Clara, California"], ["in Santa Clara"]) == pytest.approx({"em": 0.0, "f1": 200 / 3})
    # one word twice counts once where the reference has it once
    assert squad(["paris"], ["Paris paris"]) == pytest.approx({"em": 0.0, "f1": 200 / 3})
    # no answer: nothing is to be predicted; answers of which nothing is left do not count beside others
    assert squad(["", ""], ["", "Paris"]) == {"em": 50.0, "f1": 50.0}
    assert squad([["The", "Paris"]], ["a"]) == {"em": 0.0, "f1": 0.0}
    assert trivia_qa([["Sun-Moon", "Sol"]], ["the sun moon"]) == {"em": 100.0, "f1": 100.0}
    assert trivia_qa(["\u2018Sun\u2019"], ["sun"]) == {"em": 100.0, "f1": 100.0}
    assert squad(["Sun-Moon"], ["the sun moon"]) == {"em": 0.0, "f1": 0.0}


def test_words_and_exact_matches() -> None:
    assert token_f1([["a b c", "c d"], "x"], ["c d e", "y"]) == {"token_f1": pytest.approx(40.0)}
    assert token_f1(["The cat"], ["the cat"]) == {"token_f1": 50.0}  # as they are
    assert exact_match([["one", "two"], "three", "é"], ["two", "Three", "e\u0301"]) == {
        "exact_match": pytest.approx(100 / 3)
    }


@pytest.mark.parametrize("metric", METRICS)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), others=st.lists(TEXTS, min_size=4, max_size=4))
def test_properties(metric: Callable[..., Any], texts: list[str], others: list[str]) -> None:
    assert all(value == 100.0 for value in metric(texts, texts).values())
    others = others[: len(texts)]
    there, back = metric(texts, others), metric(others, texts)
    assert there == pytest.approx(back)
    assert all(0.0 <= value <= 100.0 for value in there.values())
    # another reference never harms
    more = metric([[text, other] for text, other in zip(texts, others, strict=True)], others)
    assert all(more[name] >= there[name] for name in there if metric is not squad)


@pytest.mark.parametrize("metric", METRICS)
def test_what_cannot_be_measured(metric: Callable[..., Any]) -> None:
    for targets, predictions, message in (
        ([], [], "There are no examples"),
        (["a", "b"], ["a"], "There are 2 targets and 1 outputs"),
        ([[]], ["a"], "has no reference"),
    ):
        with pytest.raises(ValueError, match=message):
            metric(targets, predictions)
