"""What `make check` says of an experiment's vocabulary."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from t5xpg.check.data_checks import _vocabulary
from t5xpg.data.text.export import export_dataset
from t5xpg.data.vocab.making import copy_vocabulary
from t5xpg.data.vocab.record import folder_of
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.experiment.needs import PlannedIds
from tests.small_tokenizers import LINES, byte_level, sentencepiece_model


def test_what_does_not_come_back_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in (*LINES[:3], "bag 日")))
    files: dict[str | None, list[Path]] = {split: [tmp_path / "a.txt"] for split in ("train", "validation")}
    export_dataset("mine", data_dir=tmp_path, files=files, log=lambda line: None)
    experiment: Any = SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace(vocab_size=1000)))

    def found(vocabulary: Vocabulary) -> list[str]:
        return [finding.text for finding in _vocabulary(vocabulary, experiment)]

    models = {"few": Path(sentencepiece_model(tmp_path / "a.model")), "all": byte_level(tmp_path / "made")}
    for name, model in models.items():
        record = copy_vocabulary("mine", model, data_dir=tmp_path, name=name, log=lambda line: None)
        size, *lost = found(record.vocabulary_in(folder_of(tmp_path, "mine", name)))
        assert str(record.vocabulary["size"]) in size
        assert len(lost) == (name == "few")
        assert all(named in text for text in lost for named in ("3 of 4", "日"))
    for vocabulary in (Vocabulary(), PlannedIds("sentencepiece", 0, model_file="mine_few", pieces=90)):
        assert len(found(vocabulary)) == 1
