"""SentencePiece models of the project's own training: the same each time, and what they keep of a text."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import sentencepiece

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.training import MODELS, SampleSize, VocabularySettings, draw_sample, train_model
from tests.small_tokenizers import LINES

SMALL = VocabularySettings(size=120)


def model_of(lines: list[str], settings: VocabularySettings) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=train_model(lines, settings, 1000))


@pytest.mark.parametrize("model", MODELS)
def test_the_same_lines_give_the_same_bytes(model: str) -> None:
    settings = dataclasses.replace(SMALL, model=model)
    first = train_model(LINES, settings, 1000)
    assert train_model(list(LINES), settings, 1000) == first
    assert train_model(LINES[:-40], settings, 1000) != first


@pytest.mark.parametrize("model", MODELS)
def test_has_t5s_special_ids(model: str) -> None:
    found = model_of(LINES, dataclasses.replace(SMALL, model=model))
    assert (found.pad_id(), found.eos_id(), found.unk_id(), found.bos_id()) == (0, 1, 2, -1)
    assert found.GetPieceSize() == 120
    assert found.Encode("\uff42ag \n dem") == found.Encode("bag dem")  # NFKC, and one space


@pytest.mark.parametrize("model", MODELS)
def test_a_text_may_have_fewer_pieces_to_give(model: str) -> None:
    found = model_of(LINES[:9], dataclasses.replace(SMALL, model=model, size=5000))
    assert 20 < found.GetPieceSize() < 1000


def test_a_text_may_have_more_characters_than_pieces() -> None:
    with pytest.raises(UserError, match=r"SIZE=9 is too small: the characters .* are \d+\. Give a larger SIZE"):
        train_model(LINES, dataclasses.replace(SMALL, size=9), 1000)


def test_identity_keeps_spaces_and_line_ends() -> None:
    code = "def f(x):\n    return  x\n\n\n\tpass\n"
    lines = [line for line in (code * 30).split("\n") if line]
    for byte_fallback in (False, True):
        settings = VocabularySettings(size=300, normalization="identity", byte_fallback=byte_fallback)
        found = model_of(lines, settings)
        assert found.Decode(found.Encode(code)) == code
        pieces = found.Encode(code, out_type=str)
        assert "▁▁▁" in " ".join(pieces)
        assert pieces.count("\n") == 5
    assert found.Decode(found.Encode("日 e\u0301")) == "日 e\u0301"


def test_reads_all_of_a_split_and_samples_it(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    documents = ["\n".join(LINES[i : i + 5]) for i in range(0, 50, 5)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    whole = draw_sample("mine", file, 10, SMALL)
    assert whole.sentences() == LINES[:50]
    some = draw_sample("mine", file, 10, dataclasses.replace(SMALL, sample=SampleSize(bytes=500)))
    assert 0 < some.bytes <= 500
    assert some.offered == 50
    other = draw_sample("mine", file, 10, dataclasses.replace(SMALL, sample=SampleSize(bytes=500), seed=1))
    assert some.sentences() != other.sentences()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "word"}, "MODEL=word is not known"),
        ({"normalization": "nfc"}, "NORMALIZATION=nfc is not known"),
        ({"size": 10**12}, "it counts pieces"),
        ({"character_coverage": 2.0}, "it is a share"),
        ({"seed": -1}, "-1"),
    ],
)
def test_settings_that_cannot_be_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        VocabularySettings(**change)  # type: ignore[arg-type]
