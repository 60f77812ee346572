"""The batches that a run was trained on: their hashes, the batches made again, and the size of their text."""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_if_any, write_json
from t5xpg.base.progress import Progress
from t5xpg.data.batch import Batch, BatchLayout, hash_batch, layout_of
from t5xpg.data.stream.client import DataService
from t5xpg.experiment.identity import data_config
from t5xpg.run.batch_trail import read_trail
from t5xpg.study.runs import StudyRun, outcome


def training_batch_hashes(run: StudyRun) -> list[str]:
    """The hashes of the batches that a run was trained on, in order."""
    directory = run.directory
    return read_trail(directory.batches)[: outcome(run).step] if directory.batches.exists() else []


def training_batches_digest(run: StudyRun) -> str:
    """A digest of the batches that a run was trained on."""
    return hashlib.sha256(
        "".join(f"{batch_hash}\n" for batch_hash in training_batch_hashes(run)).encode("ascii")
    ).hexdigest()


def training_batches(run: StudyRun, service: DataService) -> Iterator[Batch]:
    """Yields the batches that a run was trained on, made again. Raises UserError if their hashes have changed."""
    train = data_config(run.experiment.train_dataset, run.experiment.random_seed)
    hashes = training_batch_hashes(run)
    with contextlib.closing(service.open(train)) as stream:
        for batch, batch_hash in zip(itertools.islice(stream, len(hashes)), hashes, strict=True):
            if hash_batch(batch, train.num_virtual_shards) != batch_hash:
                raise other_batches_error(run)
            yield batch


def other_batches_error(run: StudyRun) -> UserError:
    """The error for a run whose batches cannot be made again."""
    return UserError(
        f"{run.path} was trained on other batches than {run.experiment.train_dataset.mixture_or_task_name} gives now: "
        "its text cannot be counted. Delete that folder to train it again."
    )


def count_text(run: StudyRun) -> None:
    """Make the batches of a run again and count the bytes of text in them; the result is kept beside the run's folder.

    A run records how many target tokens it read, but not how much text was in its inputs.
    """
    train = run.experiment.train_dataset
    layout, total = layout_of(train.converter), 0
    with Progress("text read", outcome(run).step, "batches") as progress, DataService() as service:
        token_bytes = service.describe(train).vocabulary.token_bytes()
        for batch in training_batches(run, service):
            total += count_bytes(batch, layout, token_bytes)
            progress.advance(1)
    write_json(run.file_beside("text.json"), {"batches": training_batches_digest(run), "text_bytes": total})


def count_bytes(batch: Batch, layout: BatchLayout, token_bytes: np.ndarray) -> int:
    """The number of text bytes in a batch: in its targets and, if these are a decoder's, in the encoder's inputs.

    token_bytes: int [V], the bytes of every id. Where inputs and targets have the same positions, as in a masked
    language model, all text is in the targets.
    """
    names = [layout.targets]
    if layout.targets.startswith("decoder_") and "encoder_input_tokens" in batch:
        names.append("encoder_input_tokens")
    return sum(int(token_bytes[batch[name]].sum()) for name in names)


def text_bytes(run: StudyRun) -> int | None:
    """Bytes of text that a run was trained on, as `count_text` stored them; None if not counted, or retrained since."""
    num_bytes: int | None = read_sidecar(run, "text").get("text_bytes")
    return num_bytes


def read_sidecar(run: StudyRun, kind: str) -> dict[str, Any]:
    """The record of a kind beside a run about its batches; {} if the run has been trained on others since."""
    record = json_object_if_any(run.file_beside(f"{kind}.json"))
    return record if record.get("batches") == training_batches_digest(run) else {}
