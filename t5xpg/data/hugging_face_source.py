"""Datasets of the Hugging Face hub, or of folders laid out like one, as a source of SeqIO tasks. Imports TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import seqio
import tensorflow as tf

from t5xpg.data import hugging_face
from t5xpg.errors import UserError


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

    splits: the names of splits, or SeqIO's names to those of the dataset (also slices, "train[:1%]", where it is not
    streamed). With `streaming`, rows are read as they come, without a copy of the dataset on this machine. `revision`
    pins it: a cache is told from others by these arguments, not by what the hub or the folder holds.

    The place in it cannot be saved, so that it is trained from a cache alone: the task needs a
    `seqio.CacheDatasetPlaceholder()`. Reading fails at a row that has no text in one of the columns.
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
        rows = hugging_face.rows(path, configuration, revision, names[split], streaming)
        for number, row in enumerate(rows, start=1):
            for column in columns:
                if not isinstance(row.get(column), str):
                    kind = type(row[column]).__name__ if column in row else f"not there: it has {', '.join(row)}"
                    raise UserError(f'{path} {split}, row {number}: "{column}" is {kind}, expected a string.')
            yield {column: row[column] for column in columns}

    return tf.data.Dataset.from_generator(
        examples, output_signature={column: tf.TensorSpec([], tf.string) for column in columns}
    )
