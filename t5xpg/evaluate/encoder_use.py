"""Whether a model looks at its encoder: what the loss rises by where decoders are given other examples' inputs."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

_INPUTS, _TARGETS = "encoder_input_tokens", "decoder_target_tokens"


class EncoderUse:
    """Sums of a model's measure of batches as they are, and with their encoder rows exchanged."""

    def __init__(self) -> None:
        self._nats = self._tokens = 0.0

    def add(self, own: Mapping[str, Any], other: Mapping[str, Any]) -> None:
        """A batch. own, other: its sums, "cross_entropy" in nats and "weights", and those of `exchanged`."""
        self._nats += float(other["cross_entropy"]) - float(own["cross_entropy"])
        self._tokens += float(own["weights"])

    @property
    def nats(self) -> float | None:
        """The loss with exchanged rows less the loss, in nats per target token; None without a target. About 0: the
        decoder is a language model of the targets alone."""
        return self._nats / self._tokens if self._tokens else None


def exchanged(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """The batch in which each example has the encoder's row [S] of the example before it, and the first that of the
    last. Rows of padding, which have no targets, stay as they are. None where there are not two examples, for batches
    that are packed or not of an encoder and a decoder, and on several hosts, each of which holds a part of a batch."""
    if not {_INPUTS, _TARGETS} <= set(batch) or "encoder_segment_ids" in batch or jax.process_count() > 1:
        return None
    rows = np.flatnonzero((batch[_TARGETS] != 0).any(axis=1))
    if len(rows) < 2:
        return None
    inputs = batch[_INPUTS].copy()
    inputs[rows] = batch[_INPUTS][np.roll(rows, 1)]
    return {**batch, _INPUTS: inputs}
