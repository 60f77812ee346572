"""SentencePiece models of the project's own training: the same each time, and what they keep of a text."""

import collections
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from t5xpg.data.vocab import training
from t5xpg.data.vocab.training import Sample, SampleSize, VocabularySettings, draw_sample, sentences_of, train_model
from tests.refusals import refused
from tests.small_tokenizers import LINES

SMALL = VocabularySettings(size=120)


@pytest.mark.parametrize("model", training.MODELS)
def test_models(model: str) -> None:
    """The same lines give the same bytes, with T5's special ids."""
    settings = dataclasses.replace(SMALL, model=model)
    first = train_model(LINES, settings, 1000)
    assert train_model(list(LINES), settings, 1000) == first != train_model(LINES[:-40], settings, 1000)
    found = sentencepiece.SentencePieceProcessor(model_proto=first)
    assert (found.pad_id(), found.eos_id(), found.unk_id(), found.bos_id()) == (0, 1, 2, -1)
    assert found.GetPieceSize() == 120
    assert found.Encode("\uff42ag \n dem") == found.Encode("bag dem")  # NFKC, and one space


def test_words_are_what_spaces_divide() -> None:
    """Text in pieces already, such as that of other programs' BPE, is kept to the token."""
    lines = ["a co@@ tton  shirt &apos;s ", "ﬁ ½ <0x41>  bü@@ sche", "a shirt"]
    settings = VocabularySettings(size=1000, model="word", normalization="identity", character_coverage=1.0)
    found = sentencepiece.SentencePieceProcessor(model_proto=train_model(lines, settings, 100, ["translate to: "]))
    words = {word for line in [*lines, "translate to:"] for word in line.split()}
    assert {found.IdToPiece(token) for token in range(3, found.GetPieceSize())} == {f"▁{word}" for word in words}
    assert [found.Decode(found.Encode(line)).split() for line in lines] == [line.split() for line in lines]
    assert [len(found.Encode(line)) for line in lines] == [5, 5, 2]
    assert found.Encode("a silk shirt")[1] == found.unk_id()
    few_words = train_model(lines, dataclasses.replace(settings, size=5), 100)
    few = sentencepiece.SentencePieceProcessor(model_proto=few_words)
    assert {few.IdToPiece(token) for token in (3, 4)} == {"▁a", "▁shirt"}, "the most frequent ones"


def test_a_text_may_have_more_characters_than_pieces() -> None:
    with refused("SIZE=9", "larger SIZE"):
        train_model(LINES, dataclasses.replace(SMALL, size=9), 1000)


def test_identity_keeps_spaces_and_line_ends() -> None:
    code = "def f(x):\n    return  x\n\n\n\tpass\n"
    lines = [line for line in (code * 30).split("\n") if line]
    for byte_fallback in (False, True):
        settings = VocabularySettings(size=300, normalization="identity", byte_fallback=byte_fallback)
        found = sentencepiece.SentencePieceProcessor(model_proto=train_model(lines, settings, 1000))
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
    few = dataclasses.replace(SMALL, sample=SampleSize(bytes=500))
    some, other = (draw_sample("mine", file, 10, dataclasses.replace(few, seed=seed)) for seed in (0, 1))
    assert 0 < some.bytes <= 500
    assert some.offered == 50
    assert some.sentences() != other.sentences()


def test_settings_that_cannot_be_are_refused() -> None:
    too_large: dict[str, Any] = {"size": 10**12}
    for change, named in (
        (too_large, "it counts pieces"),
        ({"character_coverage": 2.0}, "it is a share"),
        ({"model": "word", "byte_fallback": True}, "BYTE_FALLBACK=1"),
    ):
        with refused(named):
            VocabularySettings(**change)


def drawn(sentences: list[str], size: SampleSize, seed: int = 0) -> list[str]:
    sample = Sample(size, seed)
    for sentence in sentences:
        sample.offer(sentence)
    assert sample.offered == len(sentences)
    assert sample.bytes == sum(len(sentence.encode()) for sentence in sample.sentences())
    return sample.sentences()


@given(st.lists(st.text(min_size=1), max_size=60), st.integers(1, 70), st.integers(0, 5))
def test_a_sample_is_a_part_of_the_text_in_its_order(sentences: list[str], count: int, seed: int) -> None:
    found = drawn(sentences, SampleSize(sentences=count), seed)
    assert len(found) == min(count, len(sentences))
    remaining = iter(sentences)
    assert all(sentence in remaining for sentence in found)
    assert drawn(sentences, SampleSize(sentences=count), seed) == found
    few = drawn(sentences, SampleSize(bytes=count), seed)
    assert sum(len(sentence.encode()) for sentence in few) <= count


def test_every_sentence_has_the_same_chance() -> None:
    sentences = [str(i) for i in range(20)]
    counts = collections.Counter(one for seed in range(2000) for one in drawn(sentences, SampleSize(sentences=5), seed))
    assert all(400 < counts[sentence] < 600 for sentence in sentences)


def test_the_same_seed_draws_the_same_on_every_machine() -> None:
    sentences = [str(i) for i in range(100)]
    assert drawn(sentences, SampleSize(sentences=8), 3) == ["6", "21", "25", "65", "75", "77", "87", "92"]


def test_sizes_are_lines_or_bytes() -> None:
    assert SampleSize.parse("1000") == SampleSize(sentences=1000)
    assert SampleSize.parse("20 MB") == SampleSize(bytes=20_000_000)
    assert SampleSize.parse("1GiB") == SampleSize(bytes=2**30)
    for size in (SampleSize(sentences=7), SampleSize(bytes=2**20)):
        assert SampleSize.parse(str(size)) == size
    for wrong in ("", "0", "1.5MB", "3 lines"):
        with refused("number of sentences"):
            SampleSize.parse(wrong)


@given(st.text(st.sampled_from("ab \né日\t"), max_size=300), st.booleans())
def test_sentences_hold_the_text(text: str, keep_spaces: bool) -> None:
    joined = "".join(sentences_of(text, keep_spaces))
    assert joined.replace(" ", "").replace("\t", "") == "".join(text.split())


def test_long_lines_are_cut_between_words() -> None:
    line = " ".join(["word"] * 3000)
    pieces = list(sentences_of(line, keep_spaces=True))
    assert "".join(pieces) == line
    assert all(len(piece) <= training.LONGEST_SENTENCE and piece.strip().startswith("word") for piece in pieces)


def test_the_characters_of_prompts_have_pieces() -> None:
    without, with_prompt = (train_model(LINES, SMALL, 1000, prompts) for prompts in ((), ["Übersetze: "]))
    assert with_prompt == train_model(LINES, SMALL, 1000, ["Übersetze: "]) != without
    for model, unknown in ((without, True), (with_prompt, False)):
        found = sentencepiece.SentencePieceProcessor(model_proto=model)
        assert (found.unk_id() in found.encode("Übersetze: ")) == unknown
    assert train_model(LINES, SMALL, 1000, [LINES[0][:9]]) == without
