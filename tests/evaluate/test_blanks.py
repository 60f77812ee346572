"""Blanks of words: where they are cut out, the text that rows were made of, and what counts as filled in."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from t5xpg.base.files import read_json
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.blanks import NUM_WORDS, draw_blanks, places, score, windows
from t5xpg.run.directory import RunDirectory
from t5xpg.run.evaluations import all_of
from tests.workplace import Workplace

TEXT = "ragment of a text: the café (closed) has 3 x_y tables, und läuft noch ab"
BYTES = Vocabulary("bytes", extra_ids=125)
GOOGLE = Vocabulary("bytes", extra_ids=0, sentinels="byt5_google")


def test_words_and_spans_stand_inside_of_the_text() -> None:
    words = [TEXT[start:end] for start, end in places(TEXT, 1)]
    assert words == ["of", "text", "the", "café", "closed", "has", "tables", "und", "läuft", "noch"]
    assert [TEXT[start:end] for start, end in places(TEXT, 2)] == ["the café", "und läuft", "läuft noch"]
    assert [TEXT[start:end] for start, end in places(TEXT, 3)] == ["und läuft noch"]
    assert places("one two", 1) == places("incomprehensibilities are not", 2) == []


def test_blanks_are_drawn_uniformly_and_always_the_same() -> None:
    words = [first + second for first in "abcdef" for second in "abcdefgh"]
    text = f"an {' '.join(words)} edge"
    made = draw_blanks([text] * 4800 + ["none here"], NUM_WORDS["word"])
    assert made[:100] == draw_blanks([text] * 4800, NUM_WORDS["word"])[:100]
    assert all(blank.replace("<extra_id_0>", answer) == text for blank, answer in made)
    counts = Counter(answer for _, answer in made)
    assert set(counts) == set(words)
    assert all(50 < count < 150 for count in counts.values())


def test_no_answer_is_that_of_more_than_one_text_in_25() -> None:
    made = draw_blanks([TEXT] * 50, NUM_WORDS["word"])
    assert Counter(answer for _, answer in made) == dict.fromkeys((TEXT[slice(*place)] for place in places(TEXT, 1)), 2)
    assert {answer for _, answer in draw_blanks([TEXT] * 50, NUM_WORDS["span"])} == {
        "the café", "und läuft", "läuft noch", "und läuft noch",
    }  # fmt: skip
    # and only those that count are asked for
    assert {answer for _, answer in draw_blanks([TEXT] * 50, (1,), {"the", "und", "a"})} == {"the", "und"}


@pytest.mark.parametrize("vocabulary", [BYTES, GOOGLE])
def test_windows_are_the_text_that_rows_were_made_of(vocabulary: Vocabulary) -> None:
    text = vocabulary.encode("the café is closed")
    first, second = vocabulary.sentinel_id(0), vocabulary.sentinel_id(1)
    assert text[:8] == vocabulary.encode("the café")[:8]  # 7 and 8 are the bytes of one letter
    inputs = np.array([*text[:2], first, *text[3:8], second, 1, 0], np.int32)
    targets = np.array([first, text[2], second, *text[8:], 1, 0], np.int32)
    assert list(windows([(inputs, targets)], vocabulary, 100)) == ["the café is closed"]
    assert list(windows([(inputs, targets)], vocabulary, 11)) == ["the caf"]  # four tokens are spared
    supervised = np.array([*vocabulary.encode("ja"), 1], np.int32)
    assert list(windows([(inputs, supervised), (supervised, supervised)], vocabulary, 100)) == []


def test_what_is_filled_in_exactly() -> None:
    answers = ["noch", "und", "the", "of"]
    blanks_by_kind = {"word": [(f"{answer} is <extra_id_0>", answer) for answer in answers], "span": []}

    def predict(texts: Sequence[str]) -> list[str]:
        noch, und, _, of = (text.split()[0] for text in texts)
        return [f"<extra_id_0> {noch} <extra_id_1>of", f"<extra_id_0>{und}er", "the", f"<extra_id_0>{of}"]

    numbers, examples = score(blanks_by_kind, predict, ["a few of the few of them", "to the top of it"])
    assert numbers == {"word": {"exact_match": 50.0, "exchanged": 0.0, "unigram": 25.0, "examples": 4}}
    assert examples[0] == {
        "kind": "word", "input": "noch is <extra_id_0>", "target": "<extra_id_0>noch", "prediction": "<extra_id_0>noch",
    }  # fmt: skip

    def predict_the_next_answer(texts: Sequence[str]) -> list[str]:
        return [f"<extra_id_0>{answer}" for answer in [*answers[1:], answers[0]]]

    assert score(blanks_by_kind, predict_the_next_answer, [])[0]["word"]["exchanged"] == 100.0
    assert score({"word": [("<extra_id_0>", "one")]}, lambda texts: ["<extra_id_0>one"], []) == ({}, [])


@pytest.mark.process
def test_eval_measures_them(workplace: Workplace, evaluated: tuple[Path, str]) -> None:
    """That they are always the same is in test_reproduce.py."""
    run, printed = RunDirectory(evaluated[0]), evaluated[1]
    assert re.search(r"^  word +\S+ +\S+ +\d\S* +\d+$", printed, re.M)
    measured = all_of(run)[0]
    samples = read_json(measured.samples_json)
    assert {tuple(one["earlier"]) for one in samples} == {("4", "8")}
    for step in ("4", "8"):
        assert any(one["earlier"][step] != one["prediction"] for one in samples), "of other parameters"
    numbers, examples = measured.record["blanks"], read_json(measured.folder / "blanks.json")
    assert len(examples) == sum(one["examples"] for one in numbers.values())
    assert 0 < numbers["word"]["unigram"] <= 5  # "the" is two words of five, but no answer of more than one text in 25
    held_out = " ".join(Path(workplace.folder / "validation.txt").read_text().split())
    filled = [one["input"].replace("<extra_id_0>", one["target"].removeprefix("<extra_id_0>")) for one in examples]
    assert sum(" ".join(text.split()) in held_out for text in filled) > len(filled) / 3  # others are of two lines
