"""How the first examples of supervised tasks fit lengths and vocabulary."""

import dataclasses
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
    (tmp_path / "pairs.tsv").write_text("\n".join(f"How long?\t{'x' * count}" for count in range(1, 11)))
    files = {split: [tmp_path / "pairs.tsv"] for split in ("train", "validation")}
    fields = {name: name for name in ("inputs", "targets")}
    export_dataset("quiz", data_dir=tmp_path / "data", files=files, fields=fields, log=lambda line: None)
    register_tasks(tmp_path / "data")
    yield "quiz_text_to_text"
    register_tasks(tmp_path / "nothing")


def config(task: str, targets: int) -> DatasetConfig:
    return DatasetConfig(task, {"inputs": 64, "targets": targets}, use_cached=False)


def test_examples_that_are_cut_are_counted(task: str) -> None:
    def fit_of(wanted: DatasetConfig) -> LengthFit:
        (found,) = first_examples.measure(providers.find_provider(wanted), wanted)
        return LengthFit(**found)

    short, enough = config(task, 8), config(task, 11)
    fit = fit_of(short)
    assert (fit.examples, fit.cut, fit.longest["targets"]) == (10, {"inputs": 0, "targets": 3}, 11)
    assert fit.tokens["targets"] == sum(range(2, 12))
    (problem,) = fit.problems(short, 0.2)
    assert_named(problem, ["30%", task, "train", "targets", "11", "--gin.MAX_CUT_SHARE=1.0"])
    assert not list(fit.problems(short, 0.3))
    unknown = dataclasses.replace(fit, cut={"inputs": 0}, tokens={"inputs": 700}, unknown={"inputs": 14})
    assert_named(unknown.summary(short), ["WARNING", "0.0% cut at 64", "2.00% unknown"])
    assert "WARNING" not in fit_of(enough).summary(enough)


def test_texts_of_pretraining_are_not_cut(sample_tasks: Path) -> None:
    wanted = config("sample_one", 32)
    assert first_examples.measure(providers.find_provider(wanted), wanted) == []
