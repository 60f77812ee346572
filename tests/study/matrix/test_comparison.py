"""What a cell has to beat where there is text alone, against sums by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from t5xpg.data.batch import ENC_DEC, layout_of
from t5xpg.data.tasks.task_names import BYTES
from t5xpg.evaluate.baselines import Unigram
from t5xpg.study.matrix.comparison import text_alone, unigram_of_text

LAYOUT = layout_of(ENC_DEC)
SIZES = np.asarray(BYTES.token_bytes())
A, B = BYTES.encode("ab")
TARGETS = [BYTES.sentinel_id(0), A, A, BYTES.sentinel_id(1), B, BYTES.eos_id, 0, A]
BATCH = {LAYOUT.targets: np.array([TARGETS], np.int32), LAYOUT.weights: np.array([[1] * 6 + [0, 0]], np.int32)}


def test_sentinels_and_ends_are_no_text() -> None:
    alone = text_alone(BATCH, LAYOUT, SIZES)
    assert alone[LAYOUT.weights].tolist() == [[0, 1, 1, 0, 1, 0, 0, 0]]
    assert alone[LAYOUT.weights].dtype == np.int32
    assert alone[LAYOUT.targets].tolist() == [TARGETS]
    assert BATCH[LAYOUT.weights].sum() == 6


def test_the_unigrams_of_text_know_where_it_is() -> None:
    unigram = Unigram.of([BATCH], LAYOUT, BYTES.size)
    found = unigram_of_text(unigram, [BATCH], LAYOUT, SIZES)
    # counts of text: two a, one b; 256 bytes, each once more
    nats = -(2 * math.log(3 / 259) + math.log(2 / 259))
    assert found == {
        "loss": pytest.approx(nats / 3),
        "accuracy": pytest.approx(2 / 3),
        "nats_per_byte": pytest.approx(nats / 3),
        "target_tokens": 3,
    }
    assert found["loss"] < unigram.measure([text_alone(BATCH, LAYOUT, SIZES)], LAYOUT, SIZES)["loss"]
