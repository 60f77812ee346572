"""The sample of a text: its size, its chances, its order."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.training import LONGEST_SENTENCE, Sample, SampleSize, sentences_of


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
    assert drawn(sentences, SampleSize(), 3) == sentences


def test_sizes_are_lines_or_bytes() -> None:
    assert SampleSize.parse("1000") == SampleSize(sentences=1000)
    assert SampleSize.parse("20 MB") == SampleSize(bytes=20_000_000)
    assert SampleSize.parse("1GiB") == SampleSize(bytes=2**30)
    for size in (SampleSize(sentences=7), SampleSize(bytes=2**20)):
        assert SampleSize.parse(str(size)) == size
    for wrong in ("", "0", "many", "-1", "1.5MB", "3 lines"):
        with pytest.raises(UserError, match="expected a number of sentences"):
            SampleSize.parse(wrong)


@given(st.text(st.sampled_from("ab \né日\t"), max_size=300), st.booleans())
def test_sentences_hold_the_text(text: str, keep_spaces: bool) -> None:
    joined = "".join(sentences_of(text, keep_spaces))
    assert joined.replace(" ", "").replace("\t", "") == "".join(text.split())


def test_long_lines_are_cut_between_words() -> None:
    line = " ".join(["word"] * 3000)
    pieces = list(sentences_of(line, keep_spaces=True))
    assert "".join(pieces) == line
    assert all(len(piece) <= LONGEST_SENTENCE and piece.strip().startswith("word") for piece in pieces)
    assert [len(piece) for piece in sentences_of("日" * 9000, keep_spaces=False)] == [4000, 4000, 1000]
