"""Vocabularies of an export: made once, found by name, never replaced unasked, never half-written."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from t5xpg.data.spec import SpanCorruption
from t5xpg.data.tasks import task_names
from t5xpg.data.tasks.task_names import known_tasks, vocabulary_size
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.labelled import TEXT
from t5xpg.data.vocab import making as vocabulary_making
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.making import measure, table
from t5xpg.data.vocab.record import check_model_of, find_vocabularies, folder_of, read_record
from t5xpg.data.vocab.training import SampleSize, VocabularySettings
from tests.refusals import assert_named, refused
from tests.small_tokenizers import LINES, byte_level, sentencepiece_model

SETTINGS = VocabularySettings(size=90, extra_ids=10)
TASK = "mine_span_corruption_mine_unigram_90"


class Making:
    """Makes vocabularies of the export "mine", keeping what was said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.place = folder_of(self.data_dir, "mine", "unigram_90")
        self.said: list[str] = []
        self.export(0)

    def export(self, start: int) -> None:
        files: dict[str | None, list[Path]] = {}
        for split, first in (("train", start), ("validation", 300)):
            files[split] = [self.folder / f"{split}.txt"]
            files[split][0].write_text("".join(" ".join(LINES[i : i + 4]) + "\n" for i in range(first, first + 60)))
        export_dataset("mine", data_dir=self.data_dir, files=files, force=True, log=lambda line: None)

    def train(self, settings: VocabularySettings = SETTINGS, **options: Any) -> Any:
        return self._make(vocabulary_making.train_vocabulary, settings, **options)

    def copy(self, file: Path, name: str, **options: Any) -> Any:
        return self._make(vocabulary_making.copy_vocabulary, file, name=name, **options)

    def _make(self, make: Callable[..., Any], *given: Any, **options: Any) -> Any:
        self.said.clear()
        return make("mine", *given, data_dir=self.data_dir, log=self.said.append, **options)

    def row(self, task: str = TASK) -> task_names.KnownTask:
        return known_tasks(self.data_dir)[task]


@pytest.fixture
def making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Making:
    monkeypatch.setenv("T5XPG_DATA_DIR", str(tmp_path / "data"))
    return Making(tmp_path)


def test_is_made_once(making: Making) -> None:
    record = making.train()
    assert "100 ids (90 tokens and 10 sentinels)" in making.said[1]
    files = {path: path.read_bytes() for path in making.place.iterdir()}
    assert {"sentencepiece.model", "vocabulary.json", "report.json"} <= {path.name for path in files}
    assert making.train() == record == read_record(making.place)
    assert "mine_unigram_90 is up to date" in making.said[0]
    assert {path: path.read_bytes() for path in files} == files
    making.train(force=True)
    model = making.place / "sentencepiece.model"
    assert model.read_bytes() == files[model]


def test_says_what_it_was_made_from(making: Making) -> None:
    record = making.train(dataclasses.replace(SETTINGS, sample=SampleSize(sentences=50), seed=3))
    manifest = json.loads((making.data_dir / "mine" / "manifest.json").read_text())
    assert record.source == {"kind": "export", "dataset": "mine", "sha256": manifest["splits"]["train"]["sha256"]}
    assert (record.settings["sample"], record.settings["seed"]) == ("50", 3)
    assert (record.text["lines"], record.text["used_lines"]) == (60, 50)
    assert record.versions["sentencepiece"]
    assert record.command() == (
        "make vocab DATASET=mine VOCAB=unigram_90 SIZE=90 EXTRA_IDS=10 MODEL=unigram CHARACTER_COVERAGE=1.0 "
        "NORMALIZATION=nmt_nfkc SAMPLE=50 SEED=3"
    )


def test_another_text_or_setting_is_said_and_replaces_it_only_with_force(making: Making) -> None:
    making.train()
    with refused("character_coverage: 1.0, now 0.99", "VOCAB=…", "FORCE=1"):
        making.train(dataclasses.replace(SETTINGS, character_coverage=0.99))
    making.export(100)
    assert making.place.is_dir()  # an export leaves vocabularies where they are
    with refused("the text (sha256)"):
        making.train()
    making.train(force=True)
    making.train(dataclasses.replace(SETTINGS, character_coverage=1.0), name="all_of_it")
    assert set(find_vocabularies(making.data_dir)) == {"mine_all_of_it", "mine_unigram_90"}


def test_too_little_text_gives_fewer_pieces(making: Making) -> None:
    record = making.train(dataclasses.replace(SETTINGS, size=30_000))
    assert record.vocabulary["size"] < 2000
    assert_named(making.said[-1], [f"{record.vocabulary['size'] - 10:,} pieces", "30,000"])
    assert making.train(dataclasses.replace(SETTINGS, size=30_000)) == record


def test_what_was_changed_is_refused(making: Making) -> None:
    making.train()
    vocabulary = making.row().vocabulary
    check_model_of(vocabulary)
    with (making.place / "sentencepiece.model").open("ab") as file:
        file.write(b"x")
    for look in (making.train, lambda: check_model_of(vocabulary)):
        with refused("mine_unigram_90", "make vocab ", "FORCE=1"):
            look()
    (making.place / "vocabulary.json").write_text("{}")
    with refused("vocabulary.json"):
        making.train()
    assert TASK not in known_tasks(making.data_dir)
    making.train(force=True)


def test_names_that_cannot_be_are_refused(making: Making) -> None:
    for name in ("", "../up", "x" * 101):
        with refused("at most 100 letters"):
            making.train(name=name, force=True)
    assert not making.place.exists()
    # `mine` + `yours_words` would be the `mine_yours_words` of the tasks, as `mine_yours` + `words`
    other = making.data_dir / "mine_yours" / "vocabularies" / "words"
    other.mkdir(parents=True)
    (other / "vocabulary.json").write_text("{}")
    with refused("mine_yours/vocabularies/words", "'mine_yours_words'"):
        making.train(name="yours_words", force=True)


def test_tasks_have_their_names(making: Making) -> None:
    making.train()
    known = known_tasks(making.data_dir, {"yours": TEXT})
    assert known[TASK].dataset == "mine"
    assert known[TASK.replace("mine", "yours", 1)].dataset == "yours"
    assert making.row().objective == SpanCorruption(0.15, 3.0)
    assert making.row().vocabulary.size == vocabulary_size(TASK) == 100
    # the tokens that masked language models have besides
    marked = making.row("mine_mlm_mine_unigram_90")
    assert (marked.vocabulary.size, marked.cached_as) == (105, TASK)
    assert vocabulary_size("mine_span_corruption") == 384
    with refused("VOCAB_SIZE", "make vocab DATASET="):
        vocabulary_size("norwegian_span_corruption_norwegian_bpe_8000")


def test_models_that_there_are_become_vocabularies(making: Making, tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path / "gpt", special=("<end>",), eos_token="<end>")
    making.copy(Path(sentencepiece_model(tmp_path / "theirs.model")), "theirs", extra_ids=5)
    for _ in range(2):
        making.copy(tokenizer, "gpt")
    assert "mine_gpt is up to date" in making.said[0]
    theirs, gpt = (making.row(f"mine_span_corruption_mine_{name}").vocabulary for name in ("theirs", "gpt"))
    assert (theirs.kind, theirs.size) == ("sentencepiece", 69)
    # the file that says which token is the end was not copied, and is not needed
    assert (gpt.kind, gpt.eos_id, gpt.tokenizer_pad_id) == ("huggingface", gpt.size - 101, gpt.size - 101)
    assert gpt.decode(gpt.encode("bag dem")) == "bag dem"
    with refused("eos_token: None, now e"):
        making.copy(tokenizer, "gpt", eos_token="e")


def test_counts_what_the_held_out_text_gives(tmp_path: Path) -> None:
    vocabulary = vocabulary_of_file(Path(sentencepiece_model(tmp_path / "a.model")), extra_ids=10)
    texts = ["bag dem 日", "kib"]
    (tmp_path / "validation.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "zzz"}) + "\n")
    report = measure(vocabulary, tmp_path)
    ids = [token for text in texts for token in vocabulary.encode(text)]
    expected = {
        "split": "validation", "documents": 2, "characters": 12, "bytes": 14, "words": 4, "tokens": len(ids),
        "coverage": 1 - 1 / 12, "tokens_per_word": len(ids) / 4, "bytes_per_token": 14 / len(ids), "pieces": 64 - 3,
        "used": len(set(ids) - {2}) / 61,
    }  # fmt: skip
    assert {name: report[name] for name in expected} == expected
    longest = report["longest_pieces"]
    assert (len(longest), len(longest[0])) == (10, max(len(vocabulary.piece(token)) for token in range(3, 64)))
    assert_named(table(report), ["91.6667%", longest[0]])
    # on the training text where there is no other
    (tmp_path / "validation.jsonl").unlink()
    assert measure(vocabulary, tmp_path)["split"] == "train"
