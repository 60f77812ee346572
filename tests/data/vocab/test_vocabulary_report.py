"""The report of a vocabulary, against numbers that were counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.making import measure, table
from tests.small_tokenizers import sentencepiece_model


def test_counts_what_the_held_out_text_gives(tmp_path: Path) -> None:
    vocabulary = vocabulary_of_file(Path(sentencepiece_model(tmp_path / "a.model")), extra_ids=10)
    texts = ["bag dem 日", "kib"]
    (tmp_path / "validation.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "zzz"}) + "\n")
    report = measure(vocabulary, tmp_path)
    ids = [token for text in texts for token in vocabulary.encode(text)]
    assert {name: report[name] for name in ("split", "documents", "characters", "bytes", "words", "tokens")} == {
        "split": "validation", "documents": 2, "characters": 12, "bytes": 14, "words": 4, "tokens": len(ids),
    }  # fmt: skip
    assert report["coverage"] == 1 - 1 / 12
    assert report["tokens_per_word"] == len(ids) / 4
    assert report["bytes_per_token"] == 14 / len(ids)
    assert report["pieces"] == 64 - 3
    assert report["used"] == len(set(ids) - {2}) / 61
    assert sum(report["pieces_by_length"].values()) == 61
    longest = report["longest_pieces"]
    assert len(longest) == 10
    assert len(longest[0]) == max(map(int, report["pieces_by_length"]))
    shown = table(report)
    assert "91.6667% of the characters have tokens" in shown
    assert longest[0] in shown


def test_is_measured_on_the_training_text_where_there_is_no_other(tmp_path: Path) -> None:
    vocabulary = vocabulary_of_file(Path(sentencepiece_model(tmp_path / "a.model")))
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "bag\u0007"}) + "\n")
    assert measure(vocabulary, tmp_path)["split"] == "train"
