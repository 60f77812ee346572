"""The unigram baseline against sums by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from t5xpg.data.batch import ENC_DEC, layout_of
from t5xpg.evaluate.baselines import Unigram

LAYOUT = layout_of(ENC_DEC)


def batch(targets: list[list[int]], weights: list[list[int]]) -> dict[str, np.ndarray]:
    return {"decoder_target_tokens": np.array(targets, np.int32), "decoder_loss_weights": np.array(weights, np.int32)}


def test_counts_weights_and_bytes():
    training = [batch([[3, 3, 2, 0]], [[1, 1, 1, 0]]), batch([[3, 1, 0, 0]], [[1, 1, 0, 0]])]
    unigram = Unigram.of(training, LAYOUT, vocab_size=5)
    assert unigram.counts.tolist() == [0, 1, 1, 3, 0]
    # probabilities: (count + 1) / (5 + 5)
    found = unigram.measure([batch([[3, 2, 4, 0]], [[1, 1, 1, 0]])], LAYOUT, np.array([0, 0, 1, 1, 2]))
    nats = -(math.log(0.4) + math.log(0.2) + math.log(0.1))
    assert found == {
        "loss": pytest.approx(nats / 3),
        "accuracy": pytest.approx(1 / 3),
        "nats_per_byte": pytest.approx(nats / 4),
        "target_tokens": 3,
    }


def test_it_is_a_distribution():
    unigram = Unigram.of([batch([[3, 3, 2, 0]], [[1, 1, 1, 0]])], LAYOUT, vocab_size=7)
    every = [batch([[token]], [[1]]) for token in range(7)]
    losses = [unigram.measure([one], LAYOUT, np.ones(7, np.int32))["loss"] for one in every]
    assert sum(math.exp(-loss) for loss in losses) == pytest.approx(1.0)


def test_nothing_to_measure():
    found = Unigram(np.ones(3)).measure([], LAYOUT, np.ones(3))
    assert found == {"loss": None, "accuracy": None, "nats_per_byte": None, "target_tokens": 0}
