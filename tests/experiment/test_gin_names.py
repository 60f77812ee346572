"""What the text of a configuration says of its mistakes is what loading it says."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5xpg import cli
from t5xpg.base import paths
from t5xpg.experiment import config, gin_names
from tests.refusals import assert_named
from tests.workplace import EXPERIMENT

NAMES = [
    "BATCH_SIZE", "BATCH_SZE", "EMA_DECAY", "MODEL_DIR", "PACK", "TASK_FEATURE_LENGTHS", "spec.DatasetConfig.batch_sze",
    "train/spec.DatasetConfig.split", "encoder_decoder.T5Config.emb_dim", "experiment.Experiment.total_stepz", "a b",
]  # fmt: skip
VALUES = [
    "abc",
    "16",
    "0.5",
    "None",
    "True",
    "(1, 2)",
    "'x",
    "@x",
    "%BATCH_SIZE",
    "%NONE",
    "{'inputs': 64, 'targets': 32}",
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("names") / "small.gin"
    path.write_text(EXPERIMENT)
    return path


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=2))
def test_loading_finds_the_same_mistakes(file: Path, pairs: list[tuple[str, str]]) -> None:
    overrides = [f"{name}={value}" for name, value in pairs]
    found = gin_names.mistakes(file, [], overrides)
    _, problems = config.examine(str(file), overrides)
    assert len(found) <= len(problems), (found, problems)
    assert [one for one in found if "has no parameter" not in one and one not in problems] == []


def test_experiments_have_none() -> None:
    overrides, files = config.logger_overrides("wandb,mlflow")
    for name, folder in paths.experiments().items():
        assert gin_names.mistakes(folder / f"{name}.gin", files, overrides) == []


def test_the_check_stops_at_them_before_it_loads_anything(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config, "examine", None)
    for text, named in (
        ("BATCH_SIZE=abc", "must be a whole number"),
        ("BATCH_SZE=3", "Did you mean BATCH_SIZE"),
        ("train/spec.DatasetConfig.splt=test", "Did you mean split"),
    ):
        assert cli.main(["check", str(file), f"--gin.{text}"]) == 1
        assert_named(capsys.readouterr().out, [named, "the rest"])
    file.with_name("other.gin").write_text(f"{EXPERIMENT}\nTRAIN_STPES = 3\n")
    assert cli.main(["check", str(file.with_name("other.gin"))]) == 1
    assert_named(capsys.readouterr().out, ["TRAIN_STPES", "Did you mean TRAIN_STEPS", "line"])
