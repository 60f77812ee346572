"""Sources of tasks: what functions and TensorFlow Datasets must give before they are read, and Hugging Face datasets.
Imports TensorFlow."""

import functools
import importlib.resources.abc
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import seqio
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.data.tasks.task_names import cache_command
from t5xpg.data.text import hugging_face
from t5xpg.data.text.lines import string_in

_ARGUMENTS = ["split", "shuffle_files", "seed"]


class Stat(NamedTuple):
    """A file's entry in the file system."""

    size: int
    modified: int  # nanoseconds since 1970
    inode: int  # 0 where the file system has none


def stat_of(path: str) -> Stat | None:
    """A file's present entry; None if it is missing."""
    try:
        if "://" not in path:
            local = os.stat(path)
            return Stat(local.st_size, local.st_mtime_ns, local.st_ino) if os.path.isfile(path) else None
        remote = tf.io.gfile.stat(path)
        return None if remote.is_directory else Stat(int(remote.length), int(remote.mtime_nsec), 0)
    except (FileNotFoundError, NotADirectoryError, tf.errors.NotFoundError):
        return None
    except (OSError, tf.errors.OpError) as error:  # a folder that may no longer be read, a network that is away
        raise UserError(f"{path} cannot be looked at: {error}") from error


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
    """Raise UserError where the place that a task's source has been read to cannot be saved: of sources with Python in
    them (generators, `tf.py_function`). A training could not go on where it stopped. modules: what registers the task.
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


def is_prepared(task: seqio.Task) -> bool:
    """Whether the data set of TensorFlow Datasets that a task reads, if any, is on this machine."""
    return all(builder.is_prepared() for builder in _tfds_builders(task))


def number_of_examples(splits: Iterable[tuple[seqio.Task, str]]) -> int | None:
    """How many examples the sources of tasks have in these splits; None where that is not known of one."""
    try:
        counts = [task.num_input_examples(split) if is_prepared(task) else None for task, split in splits]
    except KeyError:  # num_input_examples of a source has other splits alone
        return None
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def require_prepared(task: seqio.Task) -> None:
    """Raise UserError where a task lacks its data: a training must not begin with hours of downloading."""
    if not is_prepared(task):
        raise UserError(f"{_description(task)}, which is not there. To get it, type: make cache TASK={task.name}")


def prepare(task: seqio.Task, log: Callable[[str], None]) -> None:
    """Download and prepare the data of a task where it is not there. Raises UserError where it cannot be had."""
    for builder in _tfds_builders(task):
        if builder.is_prepared():
            continue
        log(f"{_description(task)}: getting it into {builder.data_dir} …")
        # a package that TFDS 4.9 takes from the time before Python had it, and does not declare
        sys.modules.setdefault("importlib_resources", importlib.resources)
        try:
            builder.download_and_prepare()
        except Exception as error:  # of many types: of the network, of files that are to be had by hand, of the disk
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise UserError(
                f"{_description(task)}, which cannot be had here: {reason}. Prepare it on a machine with a network "
                f'(python -c "import tensorflow_datasets as tfds; tfds.load({task.source.tfds_dataset.name!r})") and '
                f"put the folder to {builder.data_dir}, or name the folder that has it: TFDS_DATA_DIR=…"
            ) from error


def _tfds_builders(task: seqio.Task) -> list[Any]:
    source = task.source
    if not isinstance(source, seqio.TfdsDataSource) or source.tfds_dataset.tfds_splits is not None:
        return []
    try:
        return [source.tfds_dataset.builder]
    except (ValueError, LookupError, AssertionError, ImportError) as error:  # no such data set, or no such version
        raise UserError(f"{_description(task)}: {str(error).splitlines()[0]}") from error


def _description(task: seqio.Task) -> str:
    return f"{task.name} reads {task.source.tfds_dataset.name} of TensorFlow Datasets"


def hugging_face_source(
    path: str,
    configuration: str | None = None,
    *,
    splits: Sequence[str] | Mapping[str, str] = ("train", "validation", "test"),
    columns: Sequence[str] = ("text",),
    revision: str | None = None,
    streaming: bool = False,
    num_input_examples: Mapping[str, int] | None = None,
) -> seqio.FunctionDataSource:
    """Examples {column: scalar string} of a dataset that `datasets` loads, from the hub or a local folder.

    splits: names of splits, or SeqIO's names to those of the dataset (also slices, "train[:1%]", where not streamed).
    streaming: rows are read as they come, without a copy on this machine. revision: pins it; a cache is identified by
    these arguments, not by what the hub holds.

    Its place cannot be saved: it is trained from a cache, for which the task needs a `seqio.CacheDatasetPlaceholder()`.
    Reading fails at a row that has no text in one of the columns.
    """
    names = dict(splits) if isinstance(splits, Mapping) else {split: split for split in splits}
    read = functools.partial(
        read_split,
        path=path,
        configuration=configuration,
        revision=revision,
        names=names,
        columns=tuple(columns),
        streaming=streaming,
    )
    return seqio.FunctionDataSource(read, splits=tuple(names), num_input_examples=num_input_examples)


def read_split(
    split: str,
    shuffle_files: bool,
    seed: int | None = None,
    *,
    path: str,
    configuration: str | None,
    revision: str | None,
    names: Mapping[str, str],
    columns: tuple[str, ...],
    streaming: bool,
) -> tf.data.Dataset:
    """The rows of a split in their order: what caches them mixes them."""

    def examples() -> Iterator[dict[str, str]]:
        rows = hugging_face.load(path, configuration, revision=revision, split=names[split], streaming=streaming)
        for number, row in enumerate(rows, start=1):
            yield {column: string_in(row, column, f"{path} {split}, row {number}") for column in columns}

    return tf.data.Dataset.from_generator(
        examples, output_signature=dict.fromkeys(columns, tf.TensorSpec([], tf.string))
    )
