"""What trained runs are measured on besides their own validation.

For a sweep: the tasks of [judged] in sweep.toml, and how much text the runs have read. Recipes that are trained on
different tasks cannot be compared otherwise: the loss on a run's own task says how hard that task is, and a step on one
task reads more text than a step on another, though batches have the same shape.
"""

import contextlib
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_if_any, write_json
from t5xpg.base.progress import Progress
from t5xpg.data.batch import Batch, BatchLayout, hash_batch, layout_of
from t5xpg.data.stream.client import DataService
from t5xpg.evaluate import evaluation
from t5xpg.evaluate.trained_model import vocabulary_differences
from t5xpg.experiment import data_state, prepare
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.identity import data_config
from t5xpg.run.batch_trail import read_trail
from t5xpg.study.runs import Run, outcome


def fed_hashes(run: Run) -> list[str]:
    """The hashes of the batches that a run was trained on, in order."""
    directory = run.directory
    return read_trail(directory.batches)[: outcome(run).step] if directory.batches.exists() else []


def fed_batches(run: Run, service: DataService) -> Iterator[Batch]:
    """The batches that a run was trained on, made again. Raises UserError where their hashes have changed."""
    train = data_config(run.experiment.train_dataset, run.experiment.random_seed)
    hashes = fed_hashes(run)
    with contextlib.closing(service.open(train)) as stream:
        for batch, hashed in zip(itertools.islice(stream, len(hashes)), hashes, strict=True):
            if hash_batch(batch, train.num_virtual_shards) != hashed:
                raise other_batches(run)
            yield batch


def other_batches(run: Run) -> UserError:
    """The error for a run whose batches cannot be made again."""
    return UserError(
        f"{run.path} was trained on other batches than {run.experiment.train_dataset.mixture_or_task_name} gives now: "
        "its text cannot be counted. Delete that folder to train it again."
    )


def require_tasks(runs: Sequence[Run], tasks: Sequence[str]) -> None:
    """Raise UserError, before training and not hours later, where a run could not be measured on a task.

    Missing exports and caches are made. Runs that were measured on every task are not checked again.
    """
    own: dict[str, Experiment] = {}
    for run in runs:
        if any(measured_on(run, task) is None for task in tasks):
            own.setdefault(run.experiment.train_dataset.mixture_or_task_name, run.experiment)
    if not own:
        return
    judged = [(name, evaluation.of_task(one.eval_dataset, task)) for name, one in own.items() for task in tasks]
    for name, dataset in (*((name, one.train_dataset) for name, one in own.items()), *judged):
        needs = own[name].needs
        state = data_state.state_of(dataset, needs)
        if not state.ready or state.row is None:
            prepare.prepare(dataset, needs)
    with DataService() as service:
        for name, dataset in judged:
            trained = service.describe(own[name].train_dataset).vocabulary
            if differences := vocabulary_differences(service.describe(dataset).vocabulary, trained.to_json(), "run"):
                raise UserError(
                    f"[judged] tasks: {dataset.mixture_or_task_name} has another vocabulary than {name}, which a "
                    f"recipe is trained on: {differences}. Choose tasks of one vocabulary."
                )


def measure(runs: Iterable[Run], tasks: Sequence[str]) -> None:
    """Measure finished runs on the tasks on which they were not measured yet, and count the text that they read."""
    for run in runs if tasks else ():
        if outcome(run).last is None:
            continue
        for task in tasks:
            if measured_on(run, task) is None:
                evaluation.evaluate(run.loaded, run.path, task=task)
        if text_bytes(run) is None:
            count_text(run)


def measured_on(run: Run, task: str) -> Mapping[str, Any] | None:
    """The evaluation of a run's last step on a task, as `evaluation.evaluate` writes it; None where there is none."""
    own = run.directory.evaluation_json  # for the task of the run's own validation
    for file in (run.directory.evaluation / task / own.name, own):
        found = json_object_if_any(file)
        of_the_last = found.get("step") == outcome(run).step and "mean_of_checkpoints" not in found
        if found.get("task") == task and of_the_last:
            return found
    return None


def fed_digest(run: Run) -> str:
    """A digest of the batches that a run was trained on."""
    return hashlib.sha256("".join(f"{hashed}\n" for hashed in fed_hashes(run)).encode("ascii")).hexdigest()


def count_text(run: Run) -> None:
    """Make the batches of a run again and count the bytes of text in them; the result is kept beside the run's folder.

    A run records how many target tokens it read, but not how much text was in its inputs.
    """
    train = run.experiment.train_dataset
    layout, total = layout_of(train.converter), 0
    with Progress("text read", outcome(run).step, "batches") as progress, DataService() as service:
        token_bytes = service.describe(train).vocabulary.token_bytes()
        for batch in fed_batches(run, service):
            total += bytes_of(batch, layout, token_bytes)
            progress.advance(1)
    write_json(run.file_beside("text.json"), {"batches": fed_digest(run), "text_bytes": total})


def bytes_of(batch: Batch, layout: BatchLayout, token_bytes: np.ndarray) -> int:
    """The bytes that the tokens of a batch stand for: its targets and, if these are a decoder's, the encoder's inputs.

    token_bytes: int [V], the bytes of every id. Where inputs and targets have the same positions, as in a masked
    language model, all text is in the targets.
    """
    names = [layout.targets]
    if layout.targets.startswith("decoder_") and "encoder_input_tokens" in batch:
        names.append("encoder_input_tokens")
    return sum(int(token_bytes[batch[name]].sum()) for name in names)


def text_bytes(run: Run) -> int | None:
    """What `count_text` has counted for the run as it is now; None where it was not called for it."""
    counted: int | None = kept(run, "text").get("text_bytes")
    return counted


def kept(run: Run, kind: str) -> dict[str, Any]:
    """What is kept beside a run about its batches; {} where it has been trained on others since."""
    found = json_object_if_any(run.file_beside(f"{kind}.json"))
    return found if found.get("batches") == fed_digest(run) else {}
