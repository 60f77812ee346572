"""What the cells of a matrix need before they are trained: the export, the vocabularies, the caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from t5xpg.base import paths
from t5xpg.data.tasks.task_names import task_name
from t5xpg.data.vocab.record import find_vocabularies
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.experiment import data_state, prepare
from t5xpg.study.matrix.cells import CellRun
from t5xpg.study.matrix.plan import Plan, VocabularyEntry


def make_vocabularies(plan: Plan) -> None:
    """Train those that are not there, on the dataset, which is exported first where it is not there.

    Raises UserError where one is there that was made with other settings, or from another text.
    """
    for entry in plan.vocabularies:
        if entry.settings is not None:
            log = print if not is_there(plan, entry) else _nothing
            prepare.train_vocabulary(plan.dataset, entry.settings, name=entry.trained_as, log=log)


def make_caches(runs: Iterable[CellRun]) -> None:
    """Cache what they read and is not cached. One after another: runs side by side would be in each other's way."""
    for run in runs:
        for dataset in (run.experiment.train_dataset, run.experiment.eval_dataset):
            if data_state.state_of(dataset).missing:
                prepare.prepare(dataset)


def is_there(plan: Plan, entry: VocabularyEntry) -> bool:
    """Whether a vocabulary was made, or needs not be."""
    name = entry.trained_as
    return name is None or task_name(plan.dataset, name) in find_vocabularies(paths.data_directory())


def command(plan: Plan, entry: VocabularyEntry) -> str | None:
    """What makes a vocabulary, as one types it; None for bytes."""
    if entry.settings is None:
        return None
    usual = VocabularySettings()
    words = [f"DATASET={plan.dataset}", f"SIZE={entry.settings.size}"]
    for field in dataclasses.fields(VocabularySettings):
        value = getattr(entry.settings, field.name)
        if field.name != "size" and value != getattr(usual, field.name):
            words.append(f"{field.name.upper()}={1 if value is True else value}")
    if entry.trained_as != entry.settings.name:
        words.append(f"VOCAB={entry.trained_as}")
    return " ".join(["make vocab", *words])


def _nothing(line: str) -> None:
    """Says that all is as it was, which it is at every call but the first."""
