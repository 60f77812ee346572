"""Span corruption of whole words: what is masked are words of the text, and inputs and targets make it again."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest
import seqio

from t5xpg.data.objectives import SpanCorruption
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.tasks import providers
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.sentinels import fill
from t5xpg.data.vocab.seqio_vocabularies import to_seqio
from t5xpg.data.vocab.vocabulary import Vocabulary
from tests.data.tasks.objective_examples import examples_of
from tests.refusals import refused
from tests.small_tokenizers import with_spaces_in_pieces, word_pieces

BYTES = Vocabulary("bytes", extra_ids=125)
TEXT = "The café_2 of Ålesund isn't far: (walk 300 m, then turn).\n\n  `list.sort()` sorts in place, a[0] first. "
WORD = re.compile(r"\w+")


@functools.cache
def examples(objective: SpanCorruption, inputs: int, targets: int) -> list[tuple[str, str]]:
    """Inputs and targets as texts."""
    documents = [BYTES.encode(TEXT * 4)] * 300
    rows = examples_of(documents, objective, to_seqio(BYTES), inputs=inputs, targets=targets)
    return [(BYTES.decode(row["inputs"]), BYTES.decode(row["targets"])) for row in rows]


def test_single_words_are_masked_and_can_be_put_back() -> None:
    found = examples(SpanCorruption(0.2, 1.0, whole_words=True), 97, 60)
    assert len(found) > 200
    words = 0
    for inputs, targets in found:
        text = fill(inputs, targets)
        assert text in TEXT * 400
        answers = re.split(r"<extra_id_\d+>", targets)[1:]
        assert [WORD.fullmatch(answer) is not None for answer in answers] == [True] * len(answers)
        assert re.findall(r"<extra_id_(\d+)>", inputs) == [str(index) for index in range(len(answers))]
        # a blank does not stand beside a letter of its own word
        assert re.search(r"\w<extra_id|extra_id_\d+>\w", inputs) is None
        words += len(WORD.findall(text))
    masked = sum(targets.count("<extra_id_") for _, targets in found)
    assert masked / words == pytest.approx(0.2, abs=0.03)


def test_a_short_input_does_not_say_that_much_is_masked() -> None:
    found = examples(SpanCorruption(0.2, 1.0, whole_words=True), 97, 60)
    lengths = np.array([len(BYTES.encode(fill(*one))) for one in found])
    masked = lengths - np.array([len(BYTES.encode(re.sub(r"<extra_id_\d+>", "", inputs))) for inputs, _ in found])
    assert np.percentile(lengths, 25) < 60 < np.percentile(lengths, 75) <= lengths.max() <= 96
    # more is masked of longer texts, which have longer inputs
    assert np.corrcoef(lengths - masked, masked)[0, 1] > 0.3


def test_longer_spans_hold_what_stands_between_their_words() -> None:
    found = examples(SpanCorruption(0.4, 2.0, whole_words=True), 97, 90)
    answers = [answer for _, targets in found for answer in re.split(r"<extra_id_\d+>", targets)[1:]]
    lengths = [len(WORD.findall(answer)) for answer in answers]
    assert np.mean(lengths) == pytest.approx(2.0, abs=0.3)
    assert any(" " in answer for answer in answers)
    assert all(WORD.match(answer) and re.search(r"\w$", answer) for answer in answers)


def test_examples_with_longer_targets_are_left_out() -> None:
    objective = SpanCorruption(0.2, 1.0, whole_words=True)
    kept = examples(objective, 97, 24)
    assert 0 < len(kept) < len(examples(objective, 97, 60))
    assert all(len(BYTES.encode(targets)) < 24 for _, targets in kept)


@pytest.mark.parametrize("mean", [1.0, 1.5, 3.0, 20.0])
@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_no_example_has_more_sentinels_than_are_said(kind: str, mean: float, tmp_path: Path) -> None:
    """In a text of words of one token: of bytes with a space between them, of pieces without."""
    vocabulary = BYTES if kind == "bytes" else vocabulary_of_file(with_spaces_in_pieces(tmp_path, sentinels=30))
    objective, lengths = SpanCorruption(0.3, mean, whole_words=True), {"inputs": 64, "targets": 64}
    rows = examples_of([vocabulary.encode("b " * 64)] * 200, objective, to_seqio(vocabulary), **lengths)
    used = max(sum(vocabulary.sentinel_index(token) is not None for token in row["inputs"].tolist()) for row in rows)
    most = objective.lengths(lengths, vocabulary).sentinels
    assert most - 2 <= used <= most
    assert objective.lengths({**lengths, "targets": 9}, vocabulary).sentinels == min(most, 4)


def test_pieces_of_words_belong_together() -> None:
    class Pieces:
        kind = "sentencepiece"

        def token_bytes(self) -> np.ndarray:
            return np.array([0, 0, 4, 2, 1, 1])

        def piece(self, token: int) -> str:
            return ["<pad>", "</s>", "▁cor", "rup", "▁", "."][token]

    of_word, begins = Vocabulary.word_flags(Pieces())  # type: ignore[arg-type]
    assert of_word.tolist() == [False, False, True, True, False, False]
    assert begins.tolist() == [False, False, True, False, True, False]


def test_pieces_that_do_not_say_where_words_begin_are_refused(tmp_path: Path) -> None:
    feature = seqio.Feature(to_seqio(vocabulary_of_file(word_pieces(tmp_path), eos_token="bad")))
    source = seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"])
    made = SpanCorruption(whole_words=True).steps()
    task = seqio.Task("words", source, {"inputs": feature, "targets": feature}, made)
    config = DatasetConfig("words", {"inputs": 32, "targets": 32})
    with refused("WHOLE_WORDS=True", "begins with a space"):
        providers._check_objective(task, config)
