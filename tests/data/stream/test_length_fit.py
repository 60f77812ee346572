"""How the first examples of supervised tasks fit lengths and vocabulary."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream import first_examples
from t5xpg.data.stream.length_fit import LengthFit
from t5xpg.data.tasks import providers
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.text.export import export_dataset
from tests.refusals import assert_named


@pytest.fixture
def task(tmp_path: Path) -> Iterator[str]:
    """Ten pairs: targets of 1 to 10 bytes and their end."""
    lines = [f"How long?\t{'x' * count}" for count in range(1, 11)]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines))
    files = {"train": [tmp_path / "pairs.tsv"], "validation": [tmp_path / "pairs.tsv"]}
    fields = {"inputs": "inputs", "targets": "targets"}
    export_dataset("quiz", data_dir=tmp_path / "data", files=files, fields=fields, log=lambda line: None)
    register_tasks(tmp_path / "data")
    yield "quiz_text_to_text"
    register_tasks(tmp_path / "nothing")


def config(task: str, targets: int) -> DatasetConfig:
    return DatasetConfig(task, {"inputs": 64, "targets": targets}, use_cached=False)


def test_examples_that_are_cut_are_counted(task: str) -> None:
    wanted = config(task, 8)
    (found,) = first_examples.measure(providers.find_provider(wanted), wanted)
    fit = LengthFit(**found)
    assert (fit.examples, fit.cut, fit.longest["targets"]) == (10, {"inputs": 0, "targets": 3}, 11)
    assert fit.tokens["targets"] == sum(range(2, 12))
    assert "WARNING" in fit.summary(wanted)
    (problem,) = fit.problems(wanted, 0.2)
    assert_named(problem, ["30%", task, "train", "targets", "11", "--gin.MAX_CUT_SHARE=1.0"])
    assert not list(fit.problems(wanted, 0.3))
    enough = config(task, 11)
    (found,) = first_examples.measure(providers.find_provider(enough), enough)
    assert "WARNING" not in LengthFit(**found).summary(enough)


def test_unknown_tokens_are_counted() -> None:
    fit = LengthFit("mine", 100, {"inputs": 0}, {"inputs": 9}, {"inputs": 700}, {"inputs": 14})
    assert_named(fit.summary(config("mine", 8)), ["WARNING", "0.0% cut at 64", "2.00% unknown"])


def test_texts_of_pretraining_are_not_cut(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join("x" * 200 + str(n) for n in range(3)))
    export_dataset("book", data_dir=tmp_path / "data", files={None: [tmp_path / "text.txt"]}, log=lambda line: None)
    register_tasks(tmp_path / "data")
    wanted = config("book_span_corruption", 32)
    assert first_examples.measure(providers.find_provider(wanted), wanted) == []
    register_tasks(tmp_path / "nothing")
