"""How text is counted, and what a cell of a matrix has to beat where there is text alone, against sums by hand."""

import math

import numpy as np
import pytest

from t5xpg.data.batch import ENC_DEC, LM, layout_of
from t5xpg.data.tasks.task_names import BYTES
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.baselines import Unigram
from t5xpg.study.matrix.unigrams import text_only, unigram_of_text
from t5xpg.study.run_batches import count_bytes

LAYOUT = layout_of(ENC_DEC)
SIZES = np.asarray(BYTES.token_bytes())
A, B = BYTES.encode("ab")
TARGETS = [BYTES.sentinel_id(0), A, A, BYTES.sentinel_id(1), B, BYTES.eos_id, 0, A]
BATCH = {LAYOUT.targets: np.array([TARGETS], np.int32), LAYOUT.weights: np.array([[1] * 6 + [0, 0]], np.int32)}


def measured(nats: float, correct: int, tokens: int) -> dict[str, object]:
    """What is said of so many tokens, of which 3 are bytes."""
    found = {"loss": nats / tokens, "accuracy": correct / tokens, "nats_per_byte": nats / 3}
    return {**{name: pytest.approx(value) for name, value in found.items()}, "target_tokens": tokens}


def test_sentinels_and_ends_are_no_text() -> None:
    alone = text_only(BATCH, LAYOUT, SIZES)
    assert alone[LAYOUT.weights].tolist() == [[0, 1, 1, 0, 1, 0, 0, 0]]
    assert alone[LAYOUT.weights].dtype == np.int32
    assert alone[LAYOUT.targets].tolist() == [TARGETS]
    assert BATCH[LAYOUT.weights].sum() == 6


def test_unigrams_of_tokens_and_of_text_whose_places_are_known() -> None:
    unigram = Unigram.of([BATCH], LAYOUT, BYTES.size)
    # counts of text: two a, one b; 256 bytes, each once more
    found = unigram_of_text(unigram, [BATCH], LAYOUT, SIZES)
    assert found == measured(-(2 * math.log(3 / 259) + math.log(2 / 259)), 2, 3)
    assert found["loss"] < unigram.measure([text_only(BATCH, LAYOUT, SIZES)], LAYOUT, SIZES)["loss"]
    assert unigram.counts.sum() == 6
    tokens = measured(-(2 * math.log(3 / 390) + 4 * math.log(2 / 390)), 2, 6)
    assert unigram.measure([BATCH], LAYOUT, SIZES) == tokens
    assert unigram.measure([], LAYOUT, SIZES) == {**dict.fromkeys(tokens), "target_tokens": 0}


def test_bytes_of_text_are_those_of_inputs_and_targets() -> None:
    vocabulary = Vocabulary("bytes", extra_ids=10)
    sentinel = vocabulary.sentinel_id(0)
    batch = {
        "encoder_input_tokens": np.array([[70, 71, sentinel, 1, 0], [80, 81, 82, sentinel, 1]], np.int32),
        "decoder_target_tokens": np.array([[sentinel, 72, 1], [sentinel, 83, 1]], np.int32),
        "decoder_input_tokens": np.array([[0, sentinel, 72], [0, sentinel, 83]], np.int32),
    }
    for converter, count in ((ENC_DEC, 2 + 1 + 3 + 1), (LM, 2)):
        assert count_bytes(batch, layout_of(converter), vocabulary.token_bytes()) == count
        batch.pop("encoder_input_tokens", None)
