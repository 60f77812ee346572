"""What the loss rises by where decoders get other examples' inputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from t5xpg.evaluate.encoder_use import EncoderUse, exchanged


def batch(inputs: list[int], targets: list[int]) -> dict[str, np.ndarray]:
    """Rows of one token twice, and one target each; 0 is padding."""
    columns = np.array(inputs, np.int32)[:, None], np.array(targets, np.int32)[:, None]
    weights = (columns[1] != 0).astype(np.int32)
    return {
        "encoder_input_tokens": np.repeat(columns[0], 2, axis=1), "decoder_target_tokens": columns[1],
        "decoder_loss_weights": weights,
    }  # fmt: skip


def copying(params: Any, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """A model whose target is the input, with 0.5 nats, and anything else 0.5 and their distance."""
    distance = np.abs(rows["encoder_input_tokens"][:, :1] - rows["decoder_target_tokens"])
    weights = rows["decoder_loss_weights"]
    return {"cross_entropy": np.float32(((0.5 + distance) * weights).sum()), "weights": np.float32(weights.sum())}


def test_examples_are_exchanged_and_padding_is_not() -> None:
    given = batch([5, 6, 7, 0], [5, 6, 7, 0])
    found = exchanged(given)
    assert found is not None
    assert found["encoder_input_tokens"].tolist() == [[7, 7], [5, 5], [6, 6], [0, 0]]
    assert found["decoder_target_tokens"] is given["decoder_target_tokens"]
    assert given["encoder_input_tokens"][0, 0] == 5
    assert exchanged(batch([5, 0], [5, 0])) is None


def test_the_rise_of_the_loss_in_nats_per_target_token() -> None:
    use = EncoderUse()
    assert use.nats is None
    for one in (batch([5, 6, 9, 0], [5, 6, 9, 0]), batch([3, 1, 0], [3, 1, 0])):
        other = exchanged(one)
        assert other is not None
        use.add(copying(None, one), copying(None, other))
    assert use.nats == pytest.approx((4 + 1 + 3 + 2 + 2) / 5)


def test_batches_without_it() -> None:
    packed = batch([5, 6], [5, 6]) | {"encoder_segment_ids": np.ones((2, 2), np.int32)}
    alone = {name: array for name, array in batch([5, 6], [5, 6]).items() if not name.startswith("encoder")}
    assert exchanged(packed) is exchanged(alone) is None
