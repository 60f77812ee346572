"""`make examples`: prints examples as text and ids, position by position, and a drawing of the masks of the first.

The data process reads them, as in training. Shapes: S, T lengths of a row, Q queries, K keys.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.markdown import cut, one_line
from t5xpg.data.batch import LM, MASKED_LM, BatchLayout, layout_of
from t5xpg.data.objectives import LanguageModel, MaskedLM
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.experiment.known_tasks import known_task
from t5xpg.experiment.needs import Need
from t5xpg.experiment.recipe import Recipe
from t5xpg.models.attention.biases import AttentionPattern

LENGTH = 64  # of each feature, without an experiment
_SHOWN_IDS, _SHOWN_TEXT, _SHOWN_POSITIONS = 24, 400, 12
_WIDTH = 48  # characters of a drawing: each stands for one position, or for several of a longer row

Row = Mapping[str, np.ndarray]  # a batch of one example


def dataset_of_task(task: str) -> DatasetConfig:
    """The dataset of a task without an experiment."""
    row = known_task(task)
    objective = None if row is None else row.objective
    if isinstance(objective, LanguageModel):
        return DatasetConfig(task, {"targets": LENGTH}, feature_converter=LM)
    converter = MASKED_LM if isinstance(objective, MaskedLM) else None
    return DatasetConfig(task, {"inputs": LENGTH, "targets": LENGTH}, feature_converter=converter)


def show(
    config: DatasetConfig, count: int, *, task: str | None = None, module_import: str = "", needs: Sequence[Need] = ()
) -> None:
    """Print `count` examples of a stream. task, module_import: replace the stream's own.

    Exports and caches are made where they are missing. Raises UserError for what cannot be read.
    """
    replacements: dict[str, Any] = {"mixture_or_task_name": task, "objective": None} if task else {}
    replacements |= {"module_import": module_import} if module_import else {}
    config = dataclasses.replace(
        config, batch_size=count, num_virtual_shards=1, num_epochs=1, length_buckets=None, **replacements
    )
    with contextlib.redirect_stdout(sys.stderr):
        Recipe.of(config, needs).make()
    with DataService() as service:
        vocabulary = service.describe(config).vocabulary
        batch = next(service.open(config, prefetch=1), None)
    if batch is None:
        raise UserError(f"{config.mixture_or_task_name} has no example in {config.split!r}.")
    layout = layout_of(config.converter)
    lengths = ", ".join(f"{feature} {length}" for feature, length in config.task_feature_lengths.items())
    print(f"{config.mixture_or_task_name}, {config.split}: {lengths}; {config.converter}{' packed' * config.pack}")
    for number in range(count):
        row = {name: array[number : number + 1] for name, array in batch.items()}
        if not any(row[name].any() for name in layout.tokens if name in row):
            break  # the split has fewer examples; the rest of the batch is padding
        print(f"\nexample {number + 1}")
        print("\n".join(_arrays(row, layout, vocabulary)))
        print("\n".join(_positions(row, layout, vocabulary)))
    print("\n".join(mask_drawing({name: array[:1] for name, array in batch.items()}, layout)))


def _arrays(row: Row, layout: BatchLayout, vocabulary: Vocabulary) -> Iterator[str]:
    """Each array of ids as text and as numbers; the other arrays as numbers."""
    for name, array in row.items():
        values = array[0]
        used = int(np.max(np.flatnonzero(values), initial=-1)) + 1
        yield f"  {name}: {used} of {len(values)} positions"
        if name in layout.tokens:
            yield f"    text  {cut(_text(values[:used], vocabulary), _SHOWN_TEXT)}"
        more = " …" if used > _SHOWN_IDS else ""
        yield f"    {'ids ' if name in layout.tokens else 'values'}  {' '.join(map(str, values[:_SHOWN_IDS]))}{more}"


def _text(ids: np.ndarray, vocabulary: Vocabulary) -> str:
    """The text of ids with the end tokens shown: a row can hold several texts."""
    parts = np.split(ids, np.flatnonzero(ids == vocabulary.eos_id) + 1)
    return "".join(
        one_line(vocabulary.decode(part)) + ("</s>" if part.size and part[-1] == vocabulary.eos_id else "")
        for part in parts
    )


def _positions(row: Row, layout: BatchLayout, vocabulary: Vocabulary) -> Iterator[str]:
    """The inputs and targets at the positions around the first one that counts in the loss."""
    targets, weights = row[layout.targets][0], row[layout.weights][0]
    inputs_name = layout.targets.replace("target", "input")
    inputs = row[inputs_name][0] if inputs_name in row else np.zeros_like(targets)
    counted = np.flatnonzero(weights)
    start = max(0, int(counted[0]) - 2) if counted.size else 0
    yield f"  position by position ({len(counted)} of {len(weights)} count in the loss):"
    yield f"    {'position':>8}  {inputs_name:<24}{layout.targets:<24}weight"
    for position in range(start, min(start + _SHOWN_POSITIONS, len(targets))):
        cells = [f"{token:>6} {_piece(int(token), vocabulary):<17}" for token in (inputs[position], targets[position])]
        yield f"    {position:>8}  {''.join(cells)}{weights[position]}"


def _piece(token: int, vocabulary: Vocabulary) -> str:
    piece = vocabulary.piece(token)
    if byte := re.fullmatch("<0x([2-7].)>", piece):
        return repr(chr(int(byte[1], 16)))
    return cut(one_line(piece), 16)


def mask_drawing(row: Row, layout: BatchLayout) -> Iterator[str]:
    """The attention masks of a row, as in `t5xpg.models` but without windows and gates, and its loss weights.

    A prefix is drawn with full attention to itself, as in a model unless its `inputs_bidirectional_attention` is False.
    """
    masks = {}
    encoder, decoder = (row.get(name) for name in ("encoder_input_tokens", "decoder_target_tokens"))
    segments = {side: row.get(f"{side}_segment_ids") for side in ("encoder", "decoder")}
    if encoder is not None:
        masks["encoder: each input sees"] = _mask(encoder.shape[1], encoder, segments["encoder"], segments["encoder"])
    if decoder is not None:
        masks["decoder: each position sees"] = _mask(
            decoder.shape[1], decoder, segments["decoder"], segments["decoder"],
            is_causal=True, prefix=row.get("decoder_causal_attention"),
        )  # fmt: skip
    if encoder is not None and decoder is not None:
        masks["cross: each position of the decoder sees of the inputs"] = _mask(
            decoder.shape[1], encoder, segments["decoder"], segments["encoder"]
        )
    weights = row[layout.weights]
    size = -(-max([weights.shape[1], *(max(mask.shape) for mask in masks.values())]) // _WIDTH)
    each = "one position" if size == 1 else f"{size} positions"
    yield f"\nexample 1, drawn: a character is {each}, # all of them, + some, . none"
    for name, mask in masks.items():
        yield f"\n{name} (a line each)"
        for line, same in itertools.groupby(mask_lines(mask, size)):
            count = len(list(same))
            yield f"  {line}{f'  x {count}' if count > 1 else ''}"
    yield f"\nloss: {layout.weights}"
    yield f"  {mask_lines(weights > 0, size)[0]}"


def _mask(queries: int, keys: np.ndarray, *segments: np.ndarray | None, **more: object) -> np.ndarray:
    """The mask of the keys that each query sees: boolean [Q, K]."""
    visible = AttentionPattern(queries, *jax.tree.map(np.asarray, (keys, *segments)), **more).visible  # type: ignore[arg-type]
    return np.broadcast_to(np.asarray(visible)[0, 0], (queries, keys.shape[1]))


def mask_lines(mask: np.ndarray, size: int) -> list[str]:
    """Boolean [Q, K] as lines of text. Each character stands for `size` x `size` positions; one row makes one line."""
    rows = np.add.reduceat(mask, range(0, len(mask), size), axis=0, dtype=np.int64)
    counts = np.add.reduceat(rows, range(0, mask.shape[1], size), axis=1)
    ones = np.ones_like(mask, dtype=np.int64)
    sizes = np.add.reduceat(np.add.reduceat(ones, range(0, len(mask), size), 0), range(0, mask.shape[1], size), 1)
    return ["".join(line) for line in np.where(counts == sizes, "#", np.where(counts > 0, "+", "."))]
