"""What the table knows of its tasks is what the data process says of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from t5xpg.base.errors import UserError
from t5xpg.data.objectives import NextLine, PrefixLM, SpanCorruption
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream import process
from t5xpg.data.stream.client import DataService, start_early
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.evaluate import measurements
from t5xpg.experiment.prepare import export_dataset, train_vocabulary

pytestmark = pytest.mark.process

TASK = "mine_span_corruption"


def config(**changes: object) -> DatasetConfig:
    lengths = {"inputs": 64, "targets": 32}
    settings = {"use_cached": False, "batch_size": 2, "task_feature_lengths": lengths} | changes
    return DatasetConfig(TASK, **settings)  # type: ignore[arg-type]


def named(name: str, targets: int, **changes: object) -> DatasetConfig:
    return dataclasses.replace(
        config(task_feature_lengths={"inputs": 64, "targets": targets}, **changes), mixture_or_task_name=name
    )


def test_a_task_of_the_table_is_known_without_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T5XPG_DATA_DIR", str(tmp_path / "data"))
    for split in ("train", "validation"):
        (tmp_path / f"{split}.txt").write_text(
            "".join(f"{n} is the number of this line. {'It has some words more. ' * 5}\n" for n in range(50))
        )
    export_dataset("mine", given={split: [tmp_path / f"{split}.txt"] for split in ("train", "validation")})
    lines = "".join(f"{n} is a number.\t{n} ist eine Zahl.\n" for n in range(30))
    (tmp_path / "pairs.tsv").write_text(lines)
    export_dataset("pairs", given={"train": [tmp_path / "pairs.tsv"]}, fields={"en": "en", "de": "de"})
    monkeypatch.setenv("T5XPG_CACHE_DIR", str(tmp_path / "cache"))
    train_vocabulary("mine", VocabularySettings(size=60, extra_ids=20), name="small")
    start_early()
    early = process._early[0].pid
    with DataService(log=tmp_path / "data.log") as service:
        assert service.pid == early  # taken over, once
        with_pieces = named("mine_span_corruption_mine_small", targets=32)
        for one in (
            config(),
            config(split="validation"),
            config(objective=SpanCorruption(0.3, 5.0)),
            named("mine_ul2", targets=64),
            named("mine_ul2_s", targets=64),
            named("mine_prefix_lm", targets=64, objective=PrefixLM(0.25)),
            named("mine_mlm", targets=64),
            named("mine_next_line", targets=64, objective=NextLine(lines=1)),
            with_pieces,
            named("mine_mlm_mine_small", targets=64),
            named("pairs_translate_de_en", targets=64),
            named("pairs_translate_en_de_mine_small", targets=64),
        ):
            assert measurements.describe_task(one, tmp_path / "data") == service.describe(one)
        assert service.describe(named("mine_next_line", targets=64)).has_metrics
        assert service.describe(named("mine_ul2", targets=64)).examples["train"] == 50  # the text of all seven
        assert service.describe(named("pairs_translate_de_en", targets=64)).has_metrics
        with pytest.raises(UserError, match="sets the objective SpanCorruption, and mine_ul2_s has no step"):
            service.describe(named("mine_ul2", targets=64, objective=SpanCorruption()))
        for one in (config(), with_pieces):
            assert len(next(service.open(one))["encoder_input_tokens"]) == 2
    assert not process._early
    assert (tmp_path / "data.log").exists()
    unknown = [
        config(split="test"),
        config(objective=SpanCorruption(0.9, 20.0)),  # its targets do not fit
        config(module_import=("my_tasks",)),
        named("mine_ul2", targets=32),  # the targets of some do not fit
        named("mine_prefix_lm", targets=64, objective=SpanCorruption()),
        dataclasses.replace(config(), mixture_or_task_name="another_span_corruption"),
        named("pairs_translate_de_en", targets=64, objective=SpanCorruption()),
        named("pairs_span_corruption", targets=64),
        named("mine_translate_de_en", targets=64),
    ]
    for one in unknown:
        assert measurements.describe_task(one, tmp_path / "data") is None


def test_a_process_that_was_started_early_for_other_folders_is_not_taken(tmp_path: Path) -> None:
    start_early()
    early = process._early[0].pid
    with DataService(data_dir=tmp_path / "data") as service:
        assert service.pid != early
    process.drop_early()
    assert not process._early
