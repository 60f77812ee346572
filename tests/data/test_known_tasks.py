"""What the table knows of its tasks is what the data process says of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from t5xpg.data import data_process, known_tasks
from t5xpg.data.client import DataService, start_early
from t5xpg.data.spec import DatasetConfig, SpanCorruption
from t5xpg.preparation import export_dataset

TASK = "mine_span_corruption"


def config(**changes: object) -> DatasetConfig:
    settings = {"use_cached": False, "batch_size": 2} | changes
    return DatasetConfig(TASK, {"inputs": 64, "targets": 32}, **settings)  # type: ignore[arg-type]


def test_a_task_of_the_table_is_known_without_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T5XPG_DATA_DIR", str(tmp_path / "data"))
    for split in ("train", "validation"):
        (tmp_path / f"{split}.txt").write_text(
            "".join(f"{n} is the number of this line. {'It has some words more. ' * 5}\n" for n in range(50))
        )
    export_dataset("mine", given={split: [tmp_path / f"{split}.txt"] for split in ("train", "validation")})
    folders = {"data_dir": tmp_path / "data", "cache_dir": tmp_path / "cache"}
    start_early(**folders)
    early = data_process._early[0].pid
    with DataService(**folders, log=tmp_path / "data.log") as service:
        assert service.pid == early  # taken over, once
        for one in (config(), config(split="validation"), config(objective=SpanCorruption(0.3, 5.0))):
            assert known_tasks.describe(one, tmp_path / "data") == service.describe(one)
        assert len(next(service.open(config()))["encoder_input_tokens"]) == 2
    assert not data_process._early
    assert (tmp_path / "data.log").exists()
    unknown = [
        config(split="test"),
        config(objective=SpanCorruption(0.9, 20.0)),  # its targets do not fit
        config(module_import=("my_tasks",)),
        dataclasses.replace(config(), mixture_or_task_name="another_span_corruption"),
    ]
    for one in unknown:
        assert known_tasks.describe(one, tmp_path / "data") is None


def test_a_process_that_was_started_early_for_other_folders_is_not_taken(tmp_path: Path) -> None:
    start_early(data_dir=tmp_path / "other", cache_dir=tmp_path / "cache")
    early = data_process._early[0].pid
    with DataService(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache") as service:
        assert service.pid != early
    data_process.drop_early()
    assert not data_process._early
