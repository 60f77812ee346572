"""The arrays of a batch: their names, shapes and dtypes. NumPy only.

A batch is a dict of int32 arrays with the names that SeqIO's feature converters give them (B rows, S and T lengths):

| name | shape | holds |
|---|---|---|
| encoder_input_tokens | [B, S] | token ids, 0 where padded |
| encoder_target_tokens | [B, S] | encoder-only models: the ids to predict |
| encoder_loss_weights | [B, S] | encoder-only models: 1 where the loss counts, else 0 |
| decoder_target_tokens | [B, T] | token ids, 0 where padded |
| decoder_input_tokens | [B, T] | the targets shifted right by one, 0 at the start of each example |
| decoder_loss_weights | [B, T] | 1 where the loss counts, else 0 |
| decoder_causal_attention | [B, T] | prefix LM: 1 where an input position belongs to the prefix, else 0 |
| encoder_segment_ids, encoder_positions | [B, S] | packed only: example's number in its row, from 1; position in it |
| decoder_segment_ids, decoder_positions | [B, T] | packed only: the same for the targets |

The `BatchLayout` of the feature converter says which of these arrays a batch has, and their lengths.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError, nearest
from t5xpg.data.objectives.objective import CHOSEN

Batch = dict[str, np.ndarray]
# Features of a task. The length of an array is the sum of their lengths.
Length = tuple[str, ...]

ENC_DEC = "EncDecFeatureConverter"
LM = "LMFeatureConverter"
PREFIX_LM = "PrefixLMFeatureConverter"
MASKED_LM = "MaskedLMFeatureConverter"


@dataclass(frozen=True)
class BatchLayout:
    """The arrays that a feature converter makes, each with the task features whose lengths add up to its length.
    only_packed: arrays of packed batches only. targets, weights: arrays for the loss. tokens: arrays of token ids.
    flags: features of the task that have no length of their own."""

    arrays: Mapping[str, Length]
    only_packed: tuple[str, ...] = ()
    targets: str = "decoder_target_tokens"
    weights: str = "decoder_loss_weights"
    tokens: tuple[str, ...] = ("encoder_input_tokens", "decoder_target_tokens", "decoder_input_tokens")
    flags: tuple[str, ...] = ()

    @property
    def task_features(self) -> tuple[str, ...]:
        """The task features that the arrays are made of."""
        return tuple(dict.fromkeys(feature for length in self.arrays.values() for feature in length))

    @property
    def token_features(self) -> tuple[str, ...]:
        """The task features that hold ids of the model's vocabulary."""
        lengths = [length for name, length in self.arrays.items() if name in self.tokens]
        return tuple(dict.fromkeys(feature for length in lengths for feature in length))

    def check_lengths(self, task_feature_lengths: Mapping[str, int]) -> None:
        """Raise UserError for a feature without length, a length without feature, and a stack with several lengths."""
        expected = self.task_features
        if set(task_feature_lengths) != set(expected):
            names = ", ".join(map(repr, task_feature_lengths)) or "nothing"
            form = ", ".join(f"{feature!r}: …" for feature in expected)
            raise UserError(f"TASK_FEATURE_LENGTHS gives lengths of {names}: expected {{{form}}}.")
        lengths = self.lengths(task_feature_lengths, packed=True)
        for stack in ("encoder_", "decoder_"):
            if len({length for name, length in lengths.items() if name.startswith(stack)}) > 1:
                raise UserError(
                    f"TASK_FEATURE_LENGTHS is {dict(task_feature_lengths)}: with this feature converter the lengths of "
                    f"{' and '.join(expected)} have to be equal."
                )

    def lengths(self, task_feature_lengths: Mapping[str, int], packed: bool) -> dict[str, int]:
        """The length of every array, by name. Raises KeyError for a feature without a length."""
        return {
            name: sum(task_feature_lengths[feature] for feature in length)
            for name, length in self.arrays.items()
            if packed or name not in self.only_packed
        }


_INPUTS, _TARGETS, _BOTH = ("inputs",), ("targets",), ("inputs", "targets")
_PACKED_ENCODER = ("encoder_segment_ids", "encoder_positions")
_PACKED_DECODER = ("decoder_segment_ids", "decoder_positions")
_DECODER = ("decoder_target_tokens", "decoder_input_tokens", "decoder_loss_weights")
_LAYOUTS = {
    ENC_DEC: BatchLayout(
        dict.fromkeys(("encoder_input_tokens", *_PACKED_ENCODER), _INPUTS)
        | dict.fromkeys((*_DECODER, *_PACKED_DECODER), _TARGETS),
        only_packed=(*_PACKED_ENCODER, *_PACKED_DECODER),
    ),
    LM: BatchLayout(dict.fromkeys((*_DECODER, *_PACKED_DECODER), _TARGETS), only_packed=_PACKED_DECODER),
    PREFIX_LM: BatchLayout(
        dict.fromkeys((*_DECODER, "decoder_causal_attention", *_PACKED_DECODER), _BOTH), only_packed=_PACKED_DECODER
    ),
    MASKED_LM: BatchLayout(
        {"encoder_input_tokens": _INPUTS, "encoder_target_tokens": _TARGETS}
        | dict.fromkeys(("encoder_loss_weights", *_PACKED_ENCODER), _INPUTS),
        only_packed=_PACKED_ENCODER,
        targets="encoder_target_tokens",
        weights="encoder_loss_weights",
        tokens=("encoder_input_tokens", "encoder_target_tokens"),
        flags=(CHOSEN,),
    ),
}


def layout_of(feature_converter: str) -> BatchLayout:
    """The layout of a feature converter's batches, by the converter's name. Raises UserError for an unknown name."""
    if feature_converter not in _LAYOUTS:
        raise UserError(
            f"There is no feature converter named {feature_converter!r}.{nearest(feature_converter, _LAYOUTS)} "
            "One of your own is made known by t5xpg.data.batch.add_layout."
        )
    return _LAYOUTS[feature_converter]


def add_layout(feature_converter: str, layout: BatchLayout) -> None:
    """Make a feature converter known by its name. Raises UserError if the name is known with another layout."""
    if _LAYOUTS.setdefault(feature_converter, layout) != layout:
        raise UserError(f"There is a feature converter named {feature_converter!r} already, with another layout.")


@dataclass(frozen=True)
class BatchSpec:
    """Shapes and dtypes of a batch. vocab_size: bounds the token ids in `validate`; None if unknown."""

    batch_size: int
    task_feature_lengths: Mapping[str, int]
    packed: bool = False
    vocab_size: int | None = None
    feature_converter: str = ENC_DEC

    @property
    def layout(self) -> BatchLayout:
        return layout_of(self.feature_converter)

    def features(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of every array of a batch, by name."""
        lengths = self.layout.lengths(self.task_feature_lengths, self.packed)
        return {name: ((self.batch_size, length), np.dtype(np.int32)) for name, length in lengths.items()}


def longest_array(batch: Mapping[str, Any]) -> int:
    """The length of the longest array of a batch, whether its arrays are NumPy arrays or on devices."""
    return max((length for array in batch.values() for length in array.shape[1:]), default=0)


def validate(batch: Mapping[str, np.ndarray], spec: BatchSpec) -> None:
    """Raise ValueError, naming every array that is missing or unknown, or has a shape, dtype or range not in `spec`."""
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
            limit = _limit(name, shape[1], spec)
            if low < 0 or (limit is not None and high >= limit):
                allowed = "0 upwards" if limit is None else f"0 to {limit - 1}"
                problems.append(f"{name} has values from {low} to {high}, expected {allowed}")
    if problems:
        raise ValueError("not a batch of this spec: " + "; ".join(problems))


def hash_batch(batch: Mapping[str, np.ndarray], parts: int = 1) -> str:
    """Hex SHA-256 of a batch's names, dtypes, shapes and bytes, the same on every machine. parts: above 1, the
    rows are divided into that many equal parts, and the result is the hash of their hashes."""
    return hash_of_parts(hash_parts(batch, parts))


def hash_parts(batch: Mapping[str, np.ndarray], parts: int) -> list[str]:
    """The hashes of `parts` equal parts of the rows, in order."""
    rows = len(next(iter(batch.values()))) // parts
    return [_hash({name: array[n * rows : (n + 1) * rows] for name, array in batch.items()}) for n in range(parts)]


def hash_of_parts(hashes: Sequence[str]) -> str:
    """The hash of the batch whose parts have these hashes."""
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode("ascii")).hexdigest()


def _hash(batch: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(batch):
        array = np.ascontiguousarray(batch[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _limit(name: str, length: int, spec: BatchSpec) -> int | None:
    """The number that all values of an array stay below; None if unbounded or unknown."""
    if name in spec.layout.tokens:
        return spec.vocab_size
    if name == spec.layout.weights or name == "decoder_causal_attention":
        return 2
    return length if name.endswith("_positions") else None


# The converters whose batches `inputs_and_targets` can take apart.
BUILT_IN_CONVERTERS = (ENC_DEC, PREFIX_LM, LM, MASKED_LM)


def inputs_and_targets(batch: Mapping[str, np.ndarray], spec: BatchSpec) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, int32 [B, S] and [B, T], padded with 0. Prefix LM: the prefix and the rest. Language model:
    the halves of a row. Masked LM: the row with and without masks. Raises KeyError for the user's own converters."""
    converter = spec.feature_converter
    if converter in (ENC_DEC, MASKED_LM):
        return batch["encoder_input_tokens"], batch[spec.layout.targets]
    tokens, lengths = batch["decoder_target_tokens"], spec.task_feature_lengths
    if converter == LM:
        half = lengths["targets"] // 2
        return tokens[:, :half], tokens[:, half:]
    if converter != PREFIX_LM:
        raise KeyError(converter)
    ends = _prefix_lengths(batch)[:, None]
    inside = np.arange(tokens.shape[1]) < ends
    inputs = np.where(inside, tokens, 0)[:, : lengths["inputs"]]
    positions = ends + np.arange(lengths["targets"])
    padded = np.pad(np.where(inside, 0, tokens), ((0, 0), (0, lengths["targets"])))
    return inputs, np.take_along_axis(padded, positions, axis=1)


def with_targets(batch: Mapping[str, np.ndarray], targets: np.ndarray, spec: BatchSpec) -> Batch:
    """The batch (encoder-decoder or prefix LM) with other targets, int32 [B, T], padded with 0. Only these count in the
    loss."""
    if spec.feature_converter == ENC_DEC:
        return {**batch, **_decoder_arrays(targets, np.zeros(len(targets), np.int32))}
    assert spec.feature_converter == PREFIX_LM
    inputs, _ = inputs_and_targets(batch, spec)
    ends = _prefix_lengths(batch)
    tokens = np.zeros_like(batch["decoder_target_tokens"])
    for row, end in enumerate(ends):
        joined = np.concatenate([inputs[row, :end], targets[row]])[: tokens.shape[1]]
        tokens[row, : len(joined)] = joined
    return {**batch, **_decoder_arrays(tokens, ends)}


def _prefix_lengths(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """[B] int32. The causal attention covers one position more, whose input is the last token of the prefix."""
    return np.maximum(batch["decoder_causal_attention"].sum(axis=1, dtype=np.int32) - 1, 0)


def _decoder_arrays(tokens: np.ndarray, first_targets: np.ndarray) -> Batch:
    """The decoder's arrays for tokens [B, T]. In each row, tokens from `first_targets` [B] on have weight 1."""
    counts = (tokens != 0) & (np.arange(tokens.shape[1]) >= first_targets[:, None])
    return {
        "decoder_target_tokens": tokens,
        "decoder_input_tokens": np.pad(tokens[:, :-1], ((0, 0), (1, 0))),
        "decoder_loss_weights": counts.astype(np.int32),
    }
