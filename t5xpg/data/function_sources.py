"""What a SeqIO source that is a Python function must be able to do before it is cached or trained from. TensorFlow."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Sequence

import seqio
import tensorflow as tf

from t5xpg.data.task_names import cache_command
from t5xpg.errors import UserError

_ARGUMENTS = ["split", "shuffle_files", "seed"]


def check_arguments(task: seqio.Task) -> None:
    """Raise UserError where a task's source is a function that does not take the seed that SeqIO gives it."""
    if not isinstance(task.source, seqio.FunctionDataSource):
        return
    function = task.source._dataset_fn
    if list(inspect.signature(function).parameters)[: len(_ARGUMENTS)] != _ARGUMENTS:
        raise UserError(
            f"{task.name} reads from the function {_name(function)}, which takes no seed. Declare it as "
            f"{_name(function)}({', '.join(_ARGUMENTS)}=None): it has to give the same examples for the same seed."
        )


def check_position(task: seqio.Task, split: str, modules: Sequence[str]) -> None:
    """Raise UserError where the place that a task's source has been read to cannot be saved.

    A training could then not go on where it stopped. It is so of sources with Python in them: generators,
    `tf.py_function`. Those that read files by name, or are made of TensorFlow's operations alone, can be put back.
    modules: what registers the task.
    """
    if isinstance(task.source, seqio.FileDataSource | seqio.TfdsDataSource):
        return
    dataset = task.source.get_dataset(split=split, shuffle=True, seed=0)
    try:
        with tempfile.TemporaryDirectory() as folder:
            tf.train.Checkpoint(iterator=iter(dataset)).write(os.path.join(folder, "position"))
    except tf.errors.FailedPreconditionError as error:  # "PyFunc is stateful"
        function = getattr(task.source, "_dataset_fn", None)
        what = f"the function {_name(function)}" if function is not None else f"a {type(task.source).__name__}"
        first = "" if task.supports_caching else "Put seqio.CacheDatasetPlaceholder() into its preprocessors, then "
        raise UserError(
            f"{task.name} reads from {what}, whose place in the data cannot be saved: a training could not go on where "
            f"it stopped. {first or 'To '}cache it, type: {cache_command(task.name, modules)}  (and read it so: "
            "USE_CACHED_TASKS = True)"
        ) from error


def _name(function: object) -> str:
    return seqio.utils.function_name(function) or repr(function)
