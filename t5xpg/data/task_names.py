"""The names of the table's tasks, `<dataset>_<objective>[_<vocabulary>]`, without what the tasks need to be made.

`task_table` makes the tasks, for which it imports TensorFlow; here is what the rest of the program has to know of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from t5xpg.data.spec import SpanCorruption
from t5xpg.vocabularies import Vocabulary


@dataclass(frozen=True)
class NamedVocabulary:
    """A vocabulary of the table: what it adds to the names of its tasks, and the objective's numbers for its tokens."""

    suffix: str
    vocabulary: Vocabulary
    span_corruption: SpanCorruption


SPAN_CORRUPTION = "span_corruption"
OBJECTIVES = (SPAN_CORRUPTION,)
VOCABULARIES: tuple[NamedVocabulary, ...] = (
    # bytes, with the mean span of ByT5 (Xue et al. 2022): the tasks that are meant where no vocabulary is named
    NamedVocabulary("", Vocabulary("bytes", extra_ids=125), SpanCorruption(0.15, 20.0)),
)

# What is said of a task without a cache; `make train` makes one.
NOT_CACHED = "is not cached"


def task_name(dataset: str, objective: str, vocabulary_suffix: str = "") -> str:
    """The task of the table that reads `dataset`."""
    return "_".join(filter(None, (dataset, objective, vocabulary_suffix)))


def dataset_of(task: str, datasets: Iterable[str]) -> str | None:
    """Which of `datasets` the task of this name reads; None for a task that is not of the table."""
    names = {task_name(dataset, *ending): dataset for dataset in datasets for ending in _endings()}
    return names.get(task)


def entry_of(task: str, dataset: str) -> NamedVocabulary:
    """The vocabulary of the table that a task of it, which reads `dataset`, has."""
    return next(
        entry
        for entry in VOCABULARIES
        for objective in OBJECTIVES
        if task == task_name(dataset, objective, entry.suffix)
    )


def possible_dataset(task: str) -> str | None:
    """The dataset that a task of this name would read, whether there is one or not; None where no task has such names.

    The one to export where there is no such task yet.
    """
    for ending in _endings():
        suffix = task_name("", *ending)
        if task.endswith(f"_{suffix}") and len(task) > len(suffix) + 1:
            return task.removesuffix(f"_{suffix}")
    return None


def _endings() -> list[tuple[str, str]]:
    return [(objective, entry.suffix) for objective in OBJECTIVES for entry in VOCABULARIES]


def cache_command(task: str, module_import: Sequence[str] = (), force: bool = False) -> str:
    """What to type to cache a task that is registered by the modules of `module_import`."""
    modules = f" MODULE_IMPORT={','.join(module_import)}" if module_import else ""
    return f"make cache TASK={task}{modules}{' FORCE=1' if force else ''}"
