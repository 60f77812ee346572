"""How much text a run has read: the bytes in its batches, counted once more from the batches themselves.

A step of one task reads more text than a step of another, though the rows are as many and as long. A run writes down
its target tokens; of the text that the inputs hold, its records say nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, write_json
from t5xpg.base.progress import Progress
from t5xpg.data.batch import Batch, BatchLayout, hash_batch, layout_of
from t5xpg.data.stream.client import DataService
from t5xpg.experiment import Experiment
from t5xpg.experiment.identity import data_config
from t5xpg.run.batch_trail import read_trail
from t5xpg.run.directory import RunDirectory
from t5xpg.study.runs import Run, outcome


def count(experiment: Experiment, run: Run, folder: Path) -> int:
    """The bytes of text in the batches of a run, which are kept beside its folder.

    Raises UserError where the data are no longer those that it was trained on, as the hashes of its batches tell.
    """
    directory = RunDirectory(folder / run.folder)
    fed = read_trail(directory.batches)[: outcome(run, folder).step]
    train = data_config(experiment.train_dataset, experiment.random_seed)
    layout, total = layout_of(train.converter), 0
    with (
        Progress("text read", len(fed), "batches") as progress,
        DataService() as service,
        contextlib.closing(service.open(train)) as stream,
    ):
        token_bytes = service.describe(train).vocabulary.token_bytes()
        for batch, hashed in zip(itertools.islice(stream, len(fed)), fed, strict=True):
            if hash_batch(batch, train.num_virtual_shards) != hashed:
                raise UserError(
                    f"{directory.path} was trained on other batches than {train.mixture_or_task_name} gives now: its "
                    "text cannot be counted. Delete that folder to train it again."
                )
            total += bytes_of(batch, layout, token_bytes)
            progress.advance(1)
    write_json(_file(run, folder), {"batches": len(fed), "text_bytes": total})
    return total


def bytes_of(batch: Batch, layout: BatchLayout, token_bytes: np.ndarray) -> int:
    """The bytes that the tokens of a batch stand for: those of its targets, and of the inputs of a decoder's.

    token_bytes: int [V], of every id. Where both have the same place, as in a masked language model, the text is in the
    targets alone.
    """
    names = [layout.targets]
    if layout.targets.startswith("decoder_") and "encoder_input_tokens" in batch:
        names.append("encoder_input_tokens")
    return sum(int(token_bytes[batch[name]].sum()) for name in names)


def of(run: Run, folder: Path) -> int | None:
    """What `count` has counted of the run as it is now; None where it has not."""
    file = _file(run, folder)
    found = read_json(file) if file.exists() else {}
    counted: int | None = found.get("text_bytes") if found.get("batches") == outcome(run, folder).step else None
    return counted


def _file(run: Run, folder: Path) -> Path:
    return folder / f"{run.folder}.text.json"
