"""The baseline of each cell of a matrix: the unigram model of its training targets, on its held-out batches.

It counts the targets of exactly the batches that the run was trained on, and is measured on the batches of the run's
validation: over all targets, and over the text alone. Sentinels and ends follow from how targets are made, and can be
half of them: a model that knows only that beats the unigrams over all targets, but not over the text.
"""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import write_json
from t5xpg.base.progress import Progress
from t5xpg.data.batch import Batch, BatchLayout, layout_of
from t5xpg.data.stream.client import DataService
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.baselines import Unigram
from t5xpg.evaluate.trained_model import check_same_vocabulary, parameters_and_vocabulary
from t5xpg.experiment import assembly
from t5xpg.experiment.identity import data_config
from t5xpg.run.metrics import Window
from t5xpg.run.records import to_json
from t5xpg.study.run_batches import other_batches_error, read_sidecar, training_batches, training_batches_digest
from t5xpg.study.runs import StudyRun, outcome

_FORMAT = 1


def compare(runs: Sequence[StudyRun]) -> None:
    """Compare those runs that were not compared yet; results are kept beside their folders. All runs are trained.

    Runs on the same data share the counting. Raises UserError where the data are no longer those that a run was trained
    on, or where a run's last checkpoint is not of its last step.
    """
    uncompared = [run for run in runs if comparison_of(run) is None]
    if not uncompared:
        return
    counts_by_data: dict[str, tuple[dict[str, Any], Vocabulary, Sequence[Batch]]] = {}
    with Progress("compare", len(uncompared), "cells") as progress, DataService() as service:
        for run in uncompared:
            experiment = run.experiment
            data = repr((experiment.train_dataset, experiment.eval_dataset, experiment.random_seed, outcome(run).step))
            if data not in counts_by_data:
                counts_by_data[data] = _count(run, service)
            record, vocabulary, held_out = counts_by_data[data]
            if record["batches"] != training_batches_digest(run):
                raise other_batches_error(run)
            of_text = {**record["of_text"], "model": _model_on_text(run, vocabulary, held_out)}
            write_json(run.file_beside("comparison.json"), to_json(record | {"of_text": of_text}))
            progress.advance(1, run.name)


def comparison_of(run: StudyRun) -> Mapping[str, Any] | None:
    """The comparison of a run with its baseline; None if missing, or if the run was trained on other batches since.

    {"batches": what was counted, as a digest, "training_tokens", "unigram": {"loss" in nats a target token, "accuracy",
    "bits_per_byte", "target_tokens"}, "of_text": {"unigram", "model"}: the same, of the text alone}
    """
    comparison = read_sidecar(run, "comparison")
    return comparison if comparison.get("format") == _FORMAT else None


def text_only(batch: Batch, layout: BatchLayout, token_bytes: np.ndarray) -> Batch:
    """The batch with weights for tokens of text alone: sentinels, ends and named tokens stand for no bytes."""
    weights = batch[layout.weights]
    return {**batch, layout.weights: np.where(token_bytes[batch[layout.targets]] > 0, weights, 0).astype(weights.dtype)}


def unigram_of_text(
    unigram: Unigram, batches: Iterable[Batch], layout: BatchLayout, token_bytes: np.ndarray
) -> dict[str, Any]:
    """`Unigram.measure` on the text alone. The unigrams know the places of text: no other token has a probability."""
    is_text = token_bytes > 0
    text_index = np.maximum(np.cumsum(is_text) - 1, 0)  # of a token among those of text
    of_text = (text_only(batch, layout, token_bytes) for batch in batches)
    renumbered = ({**batch, layout.targets: text_index[batch[layout.targets]]} for batch in of_text)
    return Unigram(unigram.counts[is_text]).measure(renumbered, layout, token_bytes[is_text])


def _count(run: StudyRun, service: DataService) -> tuple[dict[str, Any], Vocabulary, Sequence[Batch]]:
    """The parts that runs on the same data share: the record without the model's part, vocabulary, held-out batches."""
    experiment = run.experiment
    vocabulary = service.describe(experiment.train_dataset).vocabulary
    layout, sizes = layout_of(experiment.train_dataset.converter), np.asarray(vocabulary.token_bytes())
    unigram = Unigram.of(training_batches(run, service), layout, vocabulary.size)
    with contextlib.closing(service.open(data_config(experiment.eval_dataset, experiment.random_seed))) as stream:
        held_out = list(stream)
    record = {
        "format": _FORMAT,
        "batches": training_batches_digest(run),
        "training_tokens": int(unigram.counts.sum()),
        "unigram": _in_bits(unigram.measure(held_out, layout, sizes)),
        "of_text": {"unigram": _in_bits(unigram_of_text(unigram, held_out, layout, sizes))},
    }
    return record, vocabulary, held_out


def _model_on_text(run: StudyRun, data_vocabulary: Vocabulary, held_out: Sequence[Batch]) -> dict[str, Any]:
    """Measure the trained model on the text alone. Unlike the unigrams, it is not told which tokens are text."""
    directory, built = run.directory, assembly.assemble(run.experiment)
    params, vocabulary, step = parameters_and_vocabulary(directory, run.experiment, built)
    check_same_vocabulary(data_vocabulary, vocabulary, directory)
    if step != (last_step := outcome(run).step):
        raise UserError(
            f"The last checkpoint in {directory.checkpoints} is of step {step:,} and not of {last_step:,}, as that was "
            f"damaged or deleted. Delete {directory.path} to train it again."
        )
    evaluate, token_bytes = built.compile_eval_step(), built.token_bytes(vocabulary)
    layout, sizes = layout_of(run.experiment.train_dataset.converter), np.asarray(vocabulary.token_bytes())
    window = Window()
    for batch in held_out:
        rows = built.on_devices(text_only(batch, layout, sizes))
        window.add(jax.device_get(evaluate(params, rows, token_bytes)))
    summary = window.summary()
    return {name: summary[name] for name in ("loss", "accuracy", "bits_per_byte", "target_tokens")}


def _in_bits(measures: Mapping[str, Any]) -> dict[str, Any]:
    """The measures with "bits_per_byte" in place of "nats_per_byte"; None stays None."""
    nats = measures["nats_per_byte"]
    others = {name: value for name, value in measures.items() if name != "nats_per_byte"}
    return {**others, "bits_per_byte": None if nats is None else nats / math.log(2)}
