"""Sample rows of a split: the predictions for them of a checkpoint and of earlier ones, and texts for the blanks."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.data.batch import ENC_DEC, Batch, inputs_and_targets
from t5xpg.data.stream.client import DataService, Stream
from t5xpg.data.vocab.sentinels import blanks_of, fill
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate import attention, blanks
from t5xpg.evaluate.baselines import training_sample
from t5xpg.evaluate.predictor import Predictor
from t5xpg.evaluate.trained_model import parameters_and_vocabulary
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.experiment import Experiment
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.directory import RunDirectory

NUM_SAMPLES = 8
NUM_EARLIER = 3  # checkpoints whose predictions stand beside the last one's


def spread_rows(stream: Stream, count: int = blanks.NUM_WINDOWS) -> Batch:
    """At most `count` rows with targets, evenly from the first one of a split to its last."""
    targets = stream.spec.layout.targets

    def batches_with_targets() -> Iterator[Batch]:
        stream.rewind()
        for batch in stream:
            has_targets = (batch[targets] != 0).any(axis=1)
            yield {name: array[has_targets] for name, array in batch.items()}

    total = sum(len(rows[targets]) for rows in batches_with_targets())
    is_chosen = np.zeros(total, bool)
    is_chosen[_spread(total, count)] = True
    parts, start = [], 0
    for rows in batches_with_targets():
        flags = is_chosen[start : start + len(rows[targets])]
        start += len(flags)
        parts.append({name: array[flags] for name, array in rows.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _spread(total: int, count: int) -> np.ndarray:
    """At most `count` of the indices 0 … total - 1, evenly from the first to the last; int64."""
    return np.linspace(0, total - 1, min(count, total)).astype(np.int64)


def windows(
    service: DataService, stream: Stream, sample_rows: Batch, experiment: Experiment, vocabulary: Vocabulary
) -> tuple[list[str], list[str]]:
    """Texts for the blanks, from the held-out split and from training. Both are empty if the split yields no text."""

    def texts_of(rows: Batch) -> list[str]:
        pairs = zip(*inputs_and_targets(rows, stream.spec), strict=True)
        return list(blanks.windows(pairs, vocabulary, experiment.lengths["inputs"]))

    if stream.config.converter != ENC_DEC or not (held_out := texts_of(sample_rows)):
        return [], []
    with contextlib.closing(service.open(training_sample(stream.config))) as batches:
        training = [text for batch in batches for text in texts_of({name: rows[:16] for name, rows in batch.items()})]
    return held_out, training


def predict(
    directory: RunDirectory,
    built: Assembly,
    params: Any,
    vocabulary: Vocabulary,
    pairs: tuple[np.ndarray, np.ndarray],
    step: int,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The contents of an evaluation's samples.json and attention.json: predictions for NUM_SAMPLES rows by the
    checkpoint of `step` and by some earlier ones, and the attention over the encoder (`attention.of_examples`).

    params: of the checkpoint. pairs: inputs int32 [B, S] and targets int32 [B, T].
    """
    inputs, targets = (rows[_spread(len(rows), NUM_SAMPLES)] for rows in pairs)
    predictor = Predictor(built.experiment, params, vocabulary)
    predictions = predictor.tokens(inputs)
    samples = _samples(vocabulary, inputs, targets, predictions)
    for earlier_step, earlier in _earlier_predictions(directory, built, predictor, inputs, step):
        for sample, tokens in zip(samples, earlier, strict=True):
            sample.setdefault("earlier", {})[str(earlier_step)] = vocabulary.decode(tokens)
    return samples, attention.of_examples(built.experiment, params, vocabulary, inputs, predictions)


def _earlier_predictions(
    directory: RunDirectory, built: Assembly, predictor: Predictor, inputs: np.ndarray, end: int
) -> Iterator[tuple[int, np.ndarray]]:
    """The step and the predictions, int32 [B, T], for some checkpoints before the step `end` that the run has kept."""
    with Checkpointer(directory.checkpoints, built.experiment.checkpoints, read_only=True) as checkpointer:
        steps = [step for step in checkpointer.steps() if step < end]
    for step in steps[:: max(1, -(-len(steps) // NUM_EARLIER))]:
        with contextlib.suppress(UserError):  # a damaged one
            predictor.parameters, _, _ = parameters_and_vocabulary(directory, built.experiment, built, step)
            yield step, predictor.tokens(inputs)


def _samples(
    vocabulary: Vocabulary, inputs: np.ndarray, targets: np.ndarray, predictions: np.ndarray
) -> list[dict[str, Any]]:
    """Rows, int32 [B, …], as texts: the input, the target and the prediction, and the filled input if it has blanks."""
    decode, samples = vocabulary.decode, []
    for tokens, target, predicted in zip(inputs, targets, predictions, strict=True):
        text, prediction = decode(tokens), decode(predicted)
        sample = {"input": text, "target": decode(target), "prediction": prediction}
        samples.append(sample | ({"filled": fill(text, prediction)} if blanks_of(text) else {}))
    return samples
