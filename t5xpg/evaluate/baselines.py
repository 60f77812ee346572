"""The unigram baseline: the loss and the accuracy of token frequencies alone, which a model has to beat."""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from t5xpg.data.batch import BatchLayout
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.data.vocab.vocabulary import Vocabulary

_NUM_BATCHES = 100  # batches of training that are enough for frequencies


@dataclass(frozen=True)
class Unigram:
    """A model that gives every token its frequency in training, at every position.

    counts: float64 [V], the number of times that each id was a target: the sum of its weights.
    """

    counts: np.ndarray

    @classmethod
    def of(cls, batches: Iterable[Mapping[str, np.ndarray]], layout: BatchLayout, vocab_size: int) -> Self:
        """The model with the frequencies in batches of training."""
        counts = np.zeros(vocab_size)
        for batch in batches:
            weights = batch[layout.weights].astype(np.float64)
            counts += np.bincount(batch[layout.targets].ravel(), weights=weights.ravel(), minlength=vocab_size)
        return cls(counts)

    def measure(
        self, batches: Iterable[Mapping[str, np.ndarray]], layout: BatchLayout, token_bytes: np.ndarray
    ) -> dict[str, float | int | None]:
        """Measure other batches, with the names of `metrics.Window.summary`: loss (nats per target token), accuracy (of
        always predicting the most frequent token), nats_per_byte, target_tokens.

        token_bytes: int [V], the number of UTF-8 bytes of each id. Every id counts once more than it was seen
        (Laplace), so that none is impossible. A value is None if its denominator is 0.
        """
        surprisal = math.log(self.counts.sum() + len(self.counts)) - np.log(self.counts + 1.0)
        most_frequent = int(self.counts.argmax())
        nats = tokens = hits = byte_count = 0.0
        for batch in batches:
            targets, weights = batch[layout.targets], batch[layout.weights].astype(np.float64)
            nats += float((surprisal[targets] * weights).sum())
            tokens += float(weights.sum())
            hits += float(weights[targets == most_frequent].sum())
            byte_count += float(np.where(weights > 0, token_bytes[targets], 0).sum())
        return {
            "loss": nats / tokens if tokens else None,
            "accuracy": hits / tokens if tokens else None,
            "nats_per_byte": nats / byte_count if byte_count else None,
            "target_tokens": int(tokens),
        }


def training_sample(held_out: DatasetConfig) -> DatasetConfig:
    """Batches from all over the training split that are enough for frequencies."""
    return dataclasses.replace(held_out, split="train", shuffle=True, num_epochs=1, max_batches=_NUM_BATCHES)


def unigram_of_training(
    service: DataService, held_out: DatasetConfig, vocabulary: Vocabulary
) -> dict[str, float | int | None]:
    """`Unigram.measure` on a held-out split, with the frequencies in batches from all over the training split."""
    layout = held_out.batch_spec().layout
    with contextlib.closing(service.open(training_sample(held_out))) as stream:
        unigram = Unigram.of(stream, layout, vocabulary.size)
    with contextlib.closing(service.open(held_out)) as stream:
        return unigram.measure(stream, layout, vocabulary.token_bytes())
