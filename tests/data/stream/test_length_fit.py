"""How the first examples of supervised tasks fit lengths and vocabulary."""

import dataclasses
from pathlib import Path

import pytest

from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream import length_fit
from t5xpg.data.tasks import providers
from tests.refusals import assert_named

LENGTHS = {"inputs": 1000, "targets": 150}


def test_examples_that_are_cut_are_counted(sample_tasks: Path) -> None:
    settings = DatasetConfig("sample_plain", LENGTHS, use_cached=False)
    (fit,) = length_fit.measure(providers.find_provider(settings), settings)
    tokens = [len(line) + 1 for line in (sample_tasks / "text" / "train-0.txt").read_text().splitlines()]
    cut = sum(length > 150 for length in tokens)
    assert (fit.examples, fit.cut) == (len(tokens), {"inputs": 0, "targets": cut})
    assert fit.longest == dict.fromkeys(LENGTHS, max(tokens))
    assert fit.tokens == dict.fromkeys(LENGTHS, sum(tokens))
    share = cut / len(tokens)
    assert 0.1 < share < 0.9
    (problem,) = fit.problems(settings, share - 0.01)
    named = [f"{share:.0%}", "sample_plain", "train", "targets", str(max(tokens)), "--gin.MAX_CUT_SHARE=1.0"]
    assert_named(problem, named)
    assert not list(fit.problems(settings, share))
    assert_named(fit.summary(settings), ["WARNING", "0.0% cut at 1000", f"{share:.1%} cut at 150"])
    whole = dataclasses.replace(fit, cut={"inputs": 0})
    assert "WARNING" not in whole.summary(settings)
    unknown = dataclasses.replace(whole, unknown={"inputs": sum(tokens) // 50})
    assert_named(unknown.summary(settings), ["WARNING", f"{sum(tokens) // 50 / sum(tokens):.2%} unknown"])


@pytest.mark.usefixtures("sample_tasks")
def test_texts_of_pretraining_are_not_cut() -> None:
    settings = DatasetConfig("sample_one", LENGTHS, use_cached=False)
    assert length_fit.measure(providers.find_provider(settings), settings) == []
