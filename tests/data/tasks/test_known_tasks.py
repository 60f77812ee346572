"""What the data process says of the tasks of the table."""

from pathlib import Path

import pytest

from t5xpg.data.objectives import PrefixLM, SpanCorruption
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.experiment.making import export_dataset, train_vocabulary
from tests.refusals import refused
from tests.workplace import sentences

pytestmark = pytest.mark.process

TASK = "mine_span_corruption"


def named(name: str = TASK, targets: int = 64, **changes: object) -> DatasetConfig:
    settings = {"use_cached": False, "batch_size": 2} | changes
    return DatasetConfig(name, {"inputs": 64, "targets": targets}, **settings)  # type: ignore[arg-type]


def test_tasks_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T5XPG_DATA_DIR", str(tmp_path / "data"))
    for seed, split in enumerate(("train", "validation")):
        (tmp_path / f"{split}.txt").write_text(sentences(50, seed))
    export_dataset("mine", files={split: [tmp_path / f"{split}.txt"] for split in ("train", "validation")})
    (tmp_path / "pairs.tsv").write_text("".join(f"{n} is a number.\t{n} ist eine Zahl.\n" for n in range(30)))
    export_dataset("pairs", files={"train": [tmp_path / "pairs.tsv"]}, fields={"en": "en", "de": "de"})
    monkeypatch.setenv("T5XPG_CACHE_DIR", str(tmp_path / "cache"))
    train_vocabulary("mine", VocabularySettings(size=60, extra_ids=20), name="small")
    with DataService() as service:
        with_pieces = named("mine_span_corruption_mine_small")
        for one in (
            named(split="validation", objective=SpanCorruption(0.3, 5.0)),
            named("mine_ul2_s"),
            named("mine_prefix_lm", objective=PrefixLM(0.25)),
            named("mine_mlm_mine_small"),
            named("pairs_translate_de_en"),
            named("pairs_translate_en_de_mine_small"),
        ):
            assert service.describe(one).name == one.mixture_or_task_name
        assert service.describe(named("mine_next_line")).has_metrics
        assert service.describe(named("mine_ul2")).examples["train"] == 50  # the text of all seven
        with refused("SpanCorruption", "mine_ul2_s has no step"):
            service.describe(named("mine_ul2", objective=SpanCorruption()))
        for one in (named(), with_pieces):
            assert len(next(service.open(one))["encoder_input_tokens"]) == 2
