"""What each cell is compared with: the unigram model of its own training targets, on its own held-out batches.

It counts the targets of exactly the batches that the run was trained on, which the hashes in the run's `batches.sha256`
say, and is measured on the batches of its validation: of all targets, and of the text alone. Sentinels and ends follow
from how the targets are made (the next sentinel is the one with the next number, a token stands behind it), and of some
targets they are half. A model that has understood no more than that beats the unigrams of all targets; it does not beat
those of the text, measured where there is text. What was found is kept beside the run's folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, write_json
from t5xpg.base.progress import Progress
from t5xpg.data.batch import Batch, BatchLayout, hash_batch, layout_of
from t5xpg.data.stream.client import DataService
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.baselines import Unigram
from t5xpg.evaluate.measurements import describe
from t5xpg.evaluate.trained_model import check_same_vocabulary, parameters_and_vocabulary
from t5xpg.experiment import assembly
from t5xpg.experiment.identity import data_config
from t5xpg.run.batch_trail import read_trail
from t5xpg.run.directory import RunDirectory
from t5xpg.run.metrics import Window
from t5xpg.run.records import to_json
from t5xpg.study.matrix.cells import CellRun
from t5xpg.train import compile_cache

_FORMAT = 1

Comparison = Mapping[str, Any]


@dataclass(frozen=True)
class Read:
    """What runs of the same data share. fed: the digest of the training batches. asked: the held-out batches."""

    vocabulary: Vocabulary
    layout: BatchLayout
    fed: str
    training_tokens: int
    unigram: Mapping[str, Any]
    unigram_of_text: Mapping[str, Any]
    asked: Sequence[Batch]


def compare(runs: Sequence[CellRun], folder: Path) -> None:
    """Compare the runs that have not been. All of them are trained; their folders are below `folder`.

    Runs that read the same batches share the counting. Raises UserError where the data are no longer those that a run
    was trained on, or its last checkpoint is not of its last step.
    """
    waiting = [run for run in runs if of(run, folder) is None]
    if not waiting:
        return
    known: dict[str, Read] = {}
    with (
        Progress("compare", len(waiting), "cells") as progress,
        DataService() as service,
        compile_cache.kept_programs(),
    ):
        for run in waiting:
            key = _what_it_reads(run)
            if key not in known:
                known[key] = _read(run, service)
            read = known[key]
            if read.fed != _fed(run, folder):
                raise UserError(
                    f"{folder / run.folder} was trained on other batches than {run.cell.task} gives now: its targets "
                    "cannot be counted. Delete that folder to train it again."
                )
            found = {
                "format": _FORMAT,
                "batches": read.fed,
                "training_tokens": read.training_tokens,
                "unigram": read.unigram,
                "of_text": {"unigram": read.unigram_of_text, "model": _model_on_text(run, folder, read)},
            }
            write_json(_file(run, folder), to_json(found))
            progress.advance(1, run.cell.name)


def of(run: CellRun, folder: Path) -> Comparison | None:
    """What a run was compared with; None where it was not, or when it had been trained on other batches.

    {"batches": what was counted, as a digest, "training_tokens", "unigram": {"loss" in nats a target token, "accuracy",
    "bits_per_byte", "target_tokens"}, "of_text": {"unigram", "model"}: the same, of the text alone}
    """
    file = _file(run, folder)
    found: Comparison = read_json(file) if file.exists() else {}
    return found if found.get("format") == _FORMAT and found["batches"] == _fed(run, folder) else None


def text_alone(batch: Batch, layout: BatchLayout, token_bytes: np.ndarray) -> Batch:
    """The batch with weights for tokens of text alone: sentinels, ends and named tokens stand for no bytes."""
    weights = batch[layout.weights]
    return {**batch, layout.weights: np.where(token_bytes[batch[layout.targets]] > 0, weights, 0).astype(weights.dtype)}


def unigram_of_text(
    unigram: Unigram, batches: Iterable[Batch], layout: BatchLayout, token_bytes: np.ndarray
) -> dict[str, Any]:
    """`Unigram.measure` of the text alone, by a model that is told where it is: no other token has a probability."""
    is_text = token_bytes > 0
    number = np.maximum(np.cumsum(is_text) - 1, 0)  # of a token among those of text
    of_text = (text_alone(batch, layout, token_bytes) for batch in batches)
    renumbered = ({**batch, layout.targets: number[batch[layout.targets]]} for batch in of_text)
    return Unigram(unigram.counts[is_text]).measure(renumbered, layout, token_bytes[is_text])


def _read(run: CellRun, service: DataService) -> Read:
    experiment = run.experiment
    seed = experiment.random_seed
    train, held_out = (data_config(one, seed) for one in (experiment.train_dataset, experiment.eval_dataset))
    vocabulary, layout = describe(service, train).vocabulary, layout_of(train.converter)
    digest = hashlib.sha256()
    with contextlib.closing(service.open(train)) as stream:
        batches = _hashed(itertools.islice(stream, run.steps), digest, train.num_virtual_shards)
        counted = [{name: batch[name] for name in (layout.targets, layout.weights)} for batch in batches]
    with contextlib.closing(service.open(held_out)) as stream:
        asked = list(stream)
    sizes = np.asarray(vocabulary.token_bytes())
    every = Unigram.of(counted, layout, vocabulary.size)
    return Read(
        vocabulary,
        layout,
        digest.hexdigest(),
        int(every.counts.sum()),
        _in_bits(every.measure(asked, layout, sizes)),
        _in_bits(unigram_of_text(every, asked, layout, sizes)),
        asked,
    )


def _model_on_text(run: CellRun, folder: Path, read: Read) -> dict[str, Any]:
    """What the trained model says of the text alone. It has to tell text from sentinels and ends, too."""
    directory = RunDirectory(folder / run.folder)
    built = assembly.assemble(run.experiment)
    params, vocabulary, step = parameters_and_vocabulary(directory, run.experiment, built)
    check_same_vocabulary(read.vocabulary, vocabulary, directory)
    if step != run.steps:
        raise UserError(
            f"The last checkpoint in {directory.checkpoints} is of step {step:,} and not of {run.steps:,}, as that was "
            f"damaged or deleted. Delete {directory.path} to train it again."
        )
    evaluate, token_bytes = built.compile_eval_step(), built.token_bytes(vocabulary)
    sizes = np.asarray(vocabulary.token_bytes())
    window = Window()
    for batch in read.asked:
        rows = built.on_devices(text_alone(batch, read.layout, sizes))
        window.add(jax.device_get(evaluate(params, rows, token_bytes)))
    summary = window.summary()
    return {name: summary[name] for name in ("loss", "accuracy", "bits_per_byte", "target_tokens")}


def _in_bits(found: dict[str, Any]) -> dict[str, Any]:
    nats = found.pop("nats_per_byte")
    return {**found, "bits_per_byte": None if nats is None else nats / math.log(2)}


def _hashed(batches: Iterable[Batch], digest: Any, parts: int) -> Iterator[Batch]:
    """The batches, whose hashes go into the digest as they go by."""
    for batch in batches:
        digest.update(_line(hash_batch(batch, parts)))
        yield batch


def _fed(run: CellRun, folder: Path) -> str | None:
    """The digest of the batches that a run was trained on; None where it has not come to its end."""
    trail = RunDirectory(folder / run.folder).batches
    hashes = read_trail(trail)[: run.steps] if trail.exists() else []
    return hashlib.sha256(b"".join(map(_line, hashes))).hexdigest() if len(hashes) == run.steps else None


def _line(hashed: str) -> bytes:
    return f"{hashed}\n".encode("ascii")


def _what_it_reads(run: CellRun) -> str:
    experiment = run.experiment
    datasets = [one.to_json() for one in (experiment.train_dataset, experiment.eval_dataset)]
    return json.dumps([datasets, experiment.random_seed, run.steps], sort_keys=True)


def _file(run: CellRun, folder: Path) -> Path:
    return folder / f"{run.folder}.comparison.json"
