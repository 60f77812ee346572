"""What a batch is: names, shapes and dtypes of its arrays. NumPy only.

A batch is a dict of int32 arrays with the names that `seqio.EncDecFeatureConverter` gives them (B rows, S source
length, T target length):

| name | shape | holds |
|---|---|---|
| encoder_input_tokens | [B, S] | token ids, 0 where padded |
| decoder_target_tokens | [B, T] | token ids, 0 where padded |
| decoder_input_tokens | [B, T] | the targets shifted right by one, 0 at the start of each example |
| decoder_loss_weights | [B, T] | 1 where the loss counts, else 0 |
| encoder_segment_ids, encoder_positions | [B, S] | packed only: number of the example in its row, from 1; place in it |
| decoder_segment_ids, decoder_positions | [B, T] | packed only: the same of the targets |
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Batch = dict[str, np.ndarray]

TOKENS = ("encoder_input_tokens", "decoder_target_tokens", "decoder_input_tokens")
ENCODER = ("encoder_input_tokens",)
DECODER = ("decoder_target_tokens", "decoder_input_tokens", "decoder_loss_weights")
PACKED_ENCODER = ("encoder_segment_ids", "encoder_positions")
PACKED_DECODER = ("decoder_segment_ids", "decoder_positions")


@dataclass(frozen=True)
class BatchSpec:
    """Shapes and dtypes of a batch. `vocab_size`, where known, bounds the token ids that `validate` lets pass."""

    batch_size: int
    task_feature_lengths: Mapping[str, int]  # "inputs": S, "targets": T
    packed: bool = False
    vocab_size: int | None = None

    def features(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of every array of a batch, by name."""
        S, T = self.task_feature_lengths["inputs"], self.task_feature_lengths["targets"]
        encoder = ENCODER + (PACKED_ENCODER if self.packed else ())
        decoder = DECODER + (PACKED_DECODER if self.packed else ())
        lengths = dict.fromkeys(encoder, S) | dict.fromkeys(decoder, T)
        return {name: ((self.batch_size, length), np.dtype(np.int32)) for name, length in lengths.items()}

    def with_rows(self, batch_size: int) -> BatchSpec:
        """The same with another number of rows: what one process of several reads."""
        return BatchSpec(batch_size, self.task_feature_lengths, self.packed, self.vocab_size)


def validate(batch: Mapping[str, np.ndarray], spec: BatchSpec) -> None:
    """Raise ValueError, naming every array that is missing, unknown, or of a shape, dtype or range not in `spec`."""
    expected = spec.features()
    problems = [f"{name} is missing" for name in expected if name not in batch]
    problems += [f"{name} is not part of a batch" for name in batch if name not in expected]
    for name, (shape, dtype) in expected.items():
        if name not in batch:
            continue
        array = batch[name]
        if array.shape != shape:
            problems.append(f"{name} has shape {list(array.shape)}, expected {list(shape)}")
        elif array.dtype != dtype:
            problems.append(f"{name} has dtype {array.dtype}, expected {dtype}")
        elif array.size:
            low, high = int(array.min()), int(array.max())
            limit = _limit(name, spec)
            if low < 0 or (limit is not None and high >= limit):
                allowed = "0 upwards" if limit is None else f"0 to {limit - 1}"
                problems.append(f"{name} has values from {low} to {high}, expected {allowed}")
    if problems:
        raise ValueError("not a batch of this spec: " + "; ".join(problems))


def hash_batch(batch: Mapping[str, np.ndarray]) -> str:
    """Hex SHA-256 over the names in order, dtypes, shapes and bytes: equal for equal batches on every machine."""
    digest = hashlib.sha256()
    for name in sorted(batch):
        array = np.ascontiguousarray(batch[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _limit(name: str, spec: BatchSpec) -> int | None:
    """The number that all values of an array stay below; None where unbounded or unknown."""
    if name in TOKENS:
        return spec.vocab_size
    if name == "decoder_loss_weights":
        return 2
    if name.endswith("_positions"):
        return spec.task_feature_lengths["inputs" if name.startswith("encoder") else "targets"]
    return None
