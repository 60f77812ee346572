"""Whether a model looks at its encoder: what the loss rises by where decoders are given other examples' inputs."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

_INPUTS, _TARGETS = "encoder_input_tokens", "decoder_target_tokens"


class EncoderUse:
    """Measures batches (as `Validation`'s eval_step), and beside each the same batch with its encoder rows exchanged.

    measure: (params, batch) -> sums, of "cross_entropy" in nats and of "weights", among others.
    """

    def __init__(self, measure: Callable[[Any, Mapping[str, np.ndarray]], Mapping[str, Any]]) -> None:
        self._measure = measure
        self._nats = self._tokens = 0.0

    def __call__(self, params: Any, batch: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """The sums of the batch as it is."""
        own = jax.device_get(self._measure(params, batch))
        if (other := exchanged(batch)) is not None:
            found = jax.device_get(self._measure(params, other))
            self._nats += float(found["cross_entropy"]) - float(own["cross_entropy"])
            self._tokens += float(own["weights"])
        return own

    @property
    def nats(self) -> float | None:
        """The loss with exchanged rows less the loss, in nats per target token, of all batches so far that could be
        exchanged; None where none could be. About 0: the decoder is a language model of the targets alone."""
        return self._nats / self._tokens if self._tokens else None


def exchanged(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """The batch in which each example has the encoder's row [S] of the example before it, and the first that of the
    last. Rows of padding, which have no targets, stay as they are. None where there are not two examples, and for
    batches that are packed or not of an encoder and a decoder."""
    if not {_INPUTS, _TARGETS} <= set(batch) or "encoder_segment_ids" in batch:
        return None
    rows = np.flatnonzero((batch[_TARGETS] != 0).any(axis=1))
    if len(rows) < 2:
        return None
    inputs = batch[_INPUTS].copy()
    inputs[rows] = batch[_INPUTS][np.roll(rows, 1)]
    return {**batch, _INPUTS: inputs}
