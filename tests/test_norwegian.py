"""The chain of experiments/norwegian_t5 up to its training, on a small local copy of its corpus in the hub's layout."""

from pathlib import Path

import pytest

from t5xpg.check import checks
from t5xpg.data.text.sources import HuggingFace
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.experiment import prepare
from tests.refusals import assert_named
from tests.workplace import make_hub


@pytest.fixture
def corpus(own_place: Path) -> HuggingFace:
    return HuggingFace(str(make_hub(own_place / "fineweb-2", "nob_Latn", train=300)), "nob_Latn", None, streamed=True)


def test_the_base_recipe_can_be_trained_once_its_text_is_there(
    corpus: HuggingFace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checks.check("norwegian_t5", [], [], None) == 0
    assert_named(
        capsys.readouterr().out, ["make data DATASET=norwegian MAX_MB=20000, make vocab DATASET=norwegian SIZE=32000"]
    )
    manifest = prepare.export_dataset("norwegian", hub=corpus, max_bytes=20_000)
    assert 15_000 < sum(split.bytes for split in manifest.splits.values()) < 25_000
    prepare.train_vocabulary("norwegian", VocabularySettings())
    capsys.readouterr()
    assert checks.check("norwegian_t5", [], [], None) == 0
    assert_named(capsys.readouterr().out, ["568 tokens", "28 spans", "114 target tokens of 114", "32,128 of the model"])
