"""The table of tasks as an experiment has it: of the data folder, and of what its NEEDS will make there."""

import functools
from collections.abc import Sequence
from pathlib import Path

from t5xpg.base import paths, stores
from t5xpg.base.errors import UserError
from t5xpg.data.tasks import task_names
from t5xpg.data.tasks.task_names import KnownTask
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.record import find_vocabularies
from t5xpg.data.vocab.vocabulary import Vocabulary as Ids
from t5xpg.experiment.needs import Data, Need, Vocabulary


def data_folder() -> Path:
    """`paths.data_directory`, with all files of its object store except the texts, which `check_export` pulls."""
    return _with_records(paths.data_directory())


@functools.cache
def _with_records(folder: Path) -> Path:
    stores.pull_all(folder, lambda name: not name.endswith(".jsonl"))
    return folder


def known_tasks(needs: Sequence[Need] = ()) -> dict[str, KnownTask]:
    """The tasks of the table by name, with those of exports and vocabularies of `needs` that do not exist yet."""
    folder = data_folder()
    existing = find_vocabularies(folder)
    fields = {need.dataset: need.field_names for need in needs if isinstance(need, Data)}
    planned = [
        entry
        for need in needs
        if isinstance(need, Vocabulary) and need.name_in_tasks not in existing
        for entry in task_names.entries_of(need.name_in_tasks, need.planned(), need.keeps_lines)
    ]
    return task_names.known_tasks(folder, fields, planned)


def known_task(name: str, needs: Sequence[Need] = ()) -> KnownTask | None:
    """A task of the table; None for tasks of users."""
    return known_tasks(needs).get(name)


def unknown_task(name: str) -> str:
    """The message about a task that is not in the table."""
    return f"{task_names.unknown_task(name, known_tasks())} Tasks of your own need MODULE_IMPORT."


def objective_fragment(part: task_names.Part) -> str:
    """The file of gin/objectives with a task's objective; "" for span corruption, which needs none."""
    name = task_names.UL2_MIXTURE if part.mode is not None else part.objective.name
    return "" if name == task_names.SPAN_CORRUPTION else name


def vocabulary_of(name: str) -> Ids:
    """The vocabulary of a task of the table, or of a tokenizer's file. Raises UserError where neither exists."""
    if Path(name).exists():
        return vocabulary_of_file(Path(name))
    known = known_tasks()
    if name not in known:
        raise UserError(f"{task_names.unknown_task(name, known)} There is no such file either.")
    return known[name].vocabulary
