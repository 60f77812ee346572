"""Names, shapes, dtypes and values of batches."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from t5xpg.data.batch import BatchSpec, hash_batch, hash_of_parts, hash_parts, validate

SPEC = BatchSpec(2, {"inputs": 4, "targets": 3}, vocab_size=10)


def zeros(spec: BatchSpec) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in spec.features().items()}


def test_names_and_shapes() -> None:
    shapes = {name: shape for name, (shape, _) in SPEC.features().items()}
    of_decoder = ("decoder_target_tokens", "decoder_input_tokens", "decoder_loss_weights")
    assert shapes == {"encoder_input_tokens": (2, 4), **dict.fromkeys(of_decoder, (2, 3))}
    packed = BatchSpec(2, {"inputs": 4, "targets": 3}, packed=True).features()
    sides = ("encoder", "decoder")
    assert set(packed) - set(shapes) == {f"{side}_{name}" for side in sides for name in ("segment_ids", "positions")}
    assert {dtype for _, dtype in packed.values()} == {np.dtype(np.int32)}


def test_every_fault_is_named() -> None:
    batch = zeros(SPEC)
    del batch["decoder_input_tokens"]
    batch["label"] = np.zeros(2)
    batch["encoder_input_tokens"] = np.zeros((2, 5), np.int32)
    batch["decoder_loss_weights"] = np.zeros((2, 3), np.float32)
    batch["decoder_target_tokens"][0, 0] = 10
    with pytest.raises(ValueError, match="not a batch") as caught:
        validate(batch, SPEC)
    assert str(caught.value) == (
        "not a batch of this spec: decoder_input_tokens is missing; label is not part of a batch; "
        "encoder_input_tokens has shape [2, 5], expected [2, 4]; "
        "decoder_target_tokens has values from 0 to 10, expected 0 to 9; "
        "decoder_loss_weights has dtype float32, expected int32"
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("encoder_input_tokens", -1, "0 to 9"),
        ("decoder_loss_weights", 2, "0 to 1"),
        ("decoder_positions", 3, "0 to 2"),
        ("encoder_segment_ids", -1, "0 upwards"),
    ],
)
def test_values_out_of_range(name: str, value: int, expected: str) -> None:
    spec = BatchSpec(2, {"inputs": 4, "targets": 3}, packed=True, vocab_size=10)
    batch = zeros(spec)
    batch[name][1, 2] = value
    with pytest.raises(ValueError, match=f"{name} has values from .* expected {expected}$"):
        validate(batch, spec)


def test_hash_depends_on_everything_but_order_and_layout() -> None:
    batch = {"b": np.arange(6, dtype=np.int32).reshape(2, 3), "a": np.ones(2, np.int32)}
    digest = hash_batch(batch)
    assert digest == hash_batch(dict(reversed(batch.items())))
    assert digest == hash_batch({**batch, "b": np.asfortranarray(batch["b"])})
    assert digest == hash_batch({**batch, "a": batch["a"].astype(">i4")})
    others = [
        {**batch, "a": np.zeros(2, np.int32)},
        {**batch, "a": np.ones(2, np.int64)},
        {**batch, "b": batch["b"].reshape(3, 2)},
        {"c": batch["b"], "a": batch["a"]},
    ]
    assert len({digest, *map(hash_batch, others)}) == 5
    assert digest == "0ee806104ecd2f4c11b72dfbe249ca98b2b0e409fb5ca9fba9160b59e365628f"


def test_the_hash_of_parts() -> None:
    """Of the hashes of the parts, in their order; that of one part is the plain one."""
    batch = {"a": np.arange(12, dtype=np.int32).reshape(6, 2), "b": np.arange(6, dtype=np.int32).reshape(6, 1)}
    assert hash_batch(batch, 1) == hash_batch(batch)
    parts = [{name: array[rows] for name, array in batch.items()} for rows in (slice(0, 2), slice(2, 4), slice(4, 6))]
    assert hash_parts(batch, 3) == [hash_batch(part) for part in parts]
    expected = hashlib.sha256("\n".join(map(hash_batch, parts)).encode()).hexdigest()
    assert hash_batch(batch, 3) == hash_of_parts(hash_parts(batch, 3)) == expected
    assert len({hash_batch(batch, count) for count in (1, 2, 3, 6)}) == 4
