"""The rows of a batch as what is asked and what is to be answered, whichever feature converter made it. NumPy only.

Of unpacked batches on the host; see `batch` for their arrays. What is asked is what `Model.for_decoding` is given.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from t5xpg.batch import ENC_DEC, LM, MASKED_LM, PREFIX_LM, Batch, BatchSpec

# The converters whose batches have rows of that kind.
KNOWN = (ENC_DEC, PREFIX_LM, LM, MASKED_LM)


def inputs_and_targets(batch: Mapping[str, np.ndarray], spec: BatchSpec) -> tuple[np.ndarray, np.ndarray]:
    """int32 [B, S] and [B, T], each row padded with 0 behind its end.

    Of a prefix LM, the prefix and the rest. A language model is asked nothing: the first half of a row stands for it.
    Of a masked language model both are of the whole row, with and without masks. Raises KeyError for other converters.
    """
    converter = spec.feature_converter
    if converter == ENC_DEC:
        return batch["encoder_input_tokens"], batch["decoder_target_tokens"]
    if converter == MASKED_LM:
        return batch["encoder_input_tokens"], batch["encoder_target_tokens"]
    tokens, lengths = batch["decoder_target_tokens"], spec.task_feature_lengths
    if converter == LM:
        half = lengths["targets"] // 2
        return tokens[:, :half], tokens[:, half:]
    if converter != PREFIX_LM:
        raise KeyError(converter)
    ends = _prefix_lengths(batch)[:, None]
    inside = np.arange(tokens.shape[1]) < ends
    inputs = np.where(inside, tokens, 0)[:, : lengths["inputs"]]
    places = np.minimum(ends + np.arange(lengths["targets"]), tokens.shape[1] - 1)
    targets = np.take_along_axis(np.where(inside, 0, tokens), places, axis=1)
    return inputs, np.where(ends + np.arange(lengths["targets"]) < tokens.shape[1], targets, 0)


def with_targets(batch: Mapping[str, np.ndarray], targets: np.ndarray, spec: BatchSpec) -> Batch:
    """The batch with other targets, int32 [B, T], each row padded with 0 behind its end.

    They count in the loss, and nothing else does. Of an encoder-decoder or a prefix LM.
    """
    if spec.feature_converter == ENC_DEC:
        return {**batch, **_decoder_arrays(targets, np.zeros(len(targets), np.int32))}
    assert spec.feature_converter == PREFIX_LM
    inputs, _ = inputs_and_targets(batch, spec)
    ends = _prefix_lengths(batch)
    tokens = np.zeros_like(batch["decoder_target_tokens"])
    for row, end in enumerate(ends):
        whole = np.concatenate([inputs[row, :end], targets[row]])[: tokens.shape[1]]
        tokens[row, : len(whole)] = whole
    return {**batch, **_decoder_arrays(tokens, ends)}


def _prefix_lengths(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """[B] int32. The position before the first target is of the prefix, too: that of its last token."""
    return np.maximum(batch["decoder_causal_attention"].sum(axis=1, dtype=np.int32) - 1, 0)


def _decoder_arrays(tokens: np.ndarray, first: np.ndarray) -> Batch:
    """tokens [B, T], of which those from `first` [B] on count."""
    counts = (tokens != 0) & (np.arange(tokens.shape[1]) >= first[:, None])
    return {
        "decoder_target_tokens": tokens,
        "decoder_input_tokens": np.pad(tokens[:, :-1], ((0, 0), (1, 0))),
        "decoder_loss_weights": counts.astype(np.int32),
    }
