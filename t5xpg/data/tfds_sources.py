"""Data sets of TensorFlow Datasets that tasks read: whether they are there, and getting them. Imports TensorFlow.

They lie where TFDS puts them: in `~/tensorflow_datasets`, or in the folder TFDS_DATA_DIR.
"""

from __future__ import annotations

import importlib.resources.abc
import sys
from collections.abc import Callable
from typing import Any

import seqio

from t5xpg.errors import UserError


def lacks_data(task: seqio.Task) -> bool:
    """Whether a task reads a data set of TFDS that was not prepared on this machine."""
    return any(not builder.is_prepared() for builder in _builders(task))


def number_of_examples(task: seqio.Task, split: str) -> int | None:
    """How many examples the source of a task has; None where that is not known."""
    return None if lacks_data(task) else task.num_input_examples(split)


def require(task: seqio.Task) -> None:
    """Raise UserError where a task lacks its data: a training must not begin with hours of downloading."""
    if lacks_data(task):
        raise UserError(f"{_said(task)}, which is not there. To get it, type: make cache TASK={task.name}")


def get(task: seqio.Task, log: Callable[[str], None]) -> None:
    """Download and prepare the data of a task where it is not there. Raises UserError where it cannot be had."""
    for builder in _builders(task):
        if builder.is_prepared():
            continue
        log(f"{_said(task)}: getting it into {builder.data_dir} …")
        # a package that TFDS 4.9 takes from the time before Python had it, and does not declare
        sys.modules.setdefault("importlib_resources", importlib.resources)
        try:
            builder.download_and_prepare()
        except Exception as error:  # of many types: of the network, of files that are to be had by hand, of the disk
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise UserError(
                f"{_said(task)}, which cannot be had here: {reason}. Prepare it on a machine with a network "
                f'(python -c "import tensorflow_datasets as tfds; tfds.load({_name(task)!r})") and put the folder to '
                f"{builder.data_dir}, or name the folder that has it: TFDS_DATA_DIR=…"
            ) from error


def _builders(task: seqio.Task) -> list[Any]:
    source = task.source
    if not isinstance(source, seqio.TfdsDataSource) or source.tfds_dataset.tfds_splits is not None:
        return []
    try:
        return [source.tfds_dataset.builder]
    except (ValueError, LookupError, AssertionError, ImportError) as error:  # no such data set, or no such version
        raise UserError(f"{_said(task)}: {str(error).splitlines()[0]}") from error


def _name(task: seqio.Task) -> str:
    return str(task.source.tfds_dataset.name)


def _said(task: seqio.Task) -> str:
    return f"{task.name} reads {_name(task)} of TensorFlow Datasets"
