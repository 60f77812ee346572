"""Streams of batches from SeqIO tasks and mixtures. The position of a stream can be saved and restored exactly.

Virtual shards. The data of a stream is split into `num_virtual_shards` SeqIO pipelines (`seqio.ShardInfo`, packing
included), each of which gives the same number of rows of every batch: those of shard 0, then of shard 1, and so on. A
process reads exactly the rows of the shards that it owns, whatever the number of processes.

Determinism. Everything random in a SeqIO pipeline follows from one number: the order of files, the shuffle buffer, the
sampling of a mixture, the seeds of `seqio.map_over_dataset(num_seeds=...)`. For shard 0 it is `config.seed`; for others
it is derived from that and the index (exception: `_shard_seed`). tf.data runs with `deterministic=True`. This does not
cover what a preprocessor draws from stateful generators (`tf.random.uniform`).

Position. `tf.train.Checkpoint` of the iterators holds the pipeline's whole state (a symbolic one replays the stream
from its start). Nothing is cached in memory, as the cache would be part of it. The checkpoint names open files; their
state is saved with it, so that it is never restored over other files: see `t5xpg.data.stream.source_files`.
"""

import concurrent.futures
import copy
import dataclasses
import hashlib
import itertools
import os
import re
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.data.batch import Batch
from t5xpg.data.data_process import FILES, shard_prefix
from t5xpg.data.relocatable_paths import open_folders, relocatable
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.source_files import SourceFiles
from t5xpg.data.tasks.feature_converters import feature_converter
from t5xpg.data.tasks.providers import Provider, map_tasks, source_of, tasks_of

PATIENCE = 5.0  # seconds for the rows of a batch, before the tasks are examined
THREADS = 2  # of each pipeline; the training process computes on the same cores
_CHECKPOINT = "position"  # the name of TensorFlow's checkpoint of an iterator
# Its files, by the names of the arrays that hold their bytes in a saved position.
_CHECKPOINT_FILES = {"index": f"{_CHECKPOINT}.index", "data": f"{_CHECKPOINT}.data-00000-of-00001"}


class ShardedBatches:
    """The rows that `shards` give to the batches of `config`, in order; rows that an ended shard or a partial last
    batch lacks are zeros. All processes see equally many batches: the stream ends when all virtual shards have."""

    def __init__(self, provider: Provider, config: DatasetConfig, shards: Sequence[int]) -> None:
        self.config = config
        self.shards = tuple(shards)
        self._provider = provider = with_relocatable_paths(provider)
        self._datasets = {shard: _dataset(provider, config, shard) for shard in self.shards}
        self._features = config.batch_spec(config.rows_per_shard).features()
        self._zeros = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self._features.items()}
        self._length: int | None = None  # the number of batches of the whole stream, once counted
        self._may_wait = isinstance(provider, seqio.Mixture)  # False once all its tasks are seen to have examples
        self._files = SourceFiles(provider, config)
        self.identity = stream_identity(config, self._files)
        self.rewind()

    def rewind(self) -> None:
        """Go to the first batch."""
        self._iterators = {shard: iter(dataset) for shard, dataset in self._datasets.items()}
        self._ended = dict.fromkeys(self.shards, False)
        self._index = 0

    def next(self) -> Batch | None:
        """The next batch; None at the end. Raises UserError for a file that has changed."""
        try:
            batch = self._next()
        except Exception as error:
            self._files.check()  # a changed file is a cause that the user can correct
            self._files.find_damage(error)
            raise
        if batch is None:
            self._files.check()  # a file that was cut short looks like the end
        else:
            self._files.check_in_passing()
        return batch

    def _next(self) -> Batch | None:
        """The rows of all shards, one after the other; zeros for a shard that has ended before the others."""
        config = self.config
        if config.max_batches is not None and self._index >= config.max_batches:
            return None
        parts = [self._next_rows(shard) for shard in self.shards]
        if all(rows is None for rows in parts) and self._index >= self._num_batches():
            return None
        self._index += 1
        present = [self._zeros if rows is None else rows for rows in parts]
        return {name: np.concatenate([rows[name] for rows in present]) for name in self._features}

    def save(self) -> dict[str, np.ndarray]:
        """The position, as arrays; those of one virtual shard are named `shard_<index>-…`. Raises UserError if a
        file has changed since the stream was opened: the data read since may be other data."""
        arrays: dict[str, np.ndarray] = {FILES: self._files.to_array()}
        for shard in self.shards:
            position = {"position": np.array([self._index, self._ended[shard]], np.int64)}
            if not self._ended[shard]:
                position |= _iterator_state(self._iterators[shard])
            arrays |= {shard_prefix(shard) + name: array for name, array in position.items()}
        self._files.check()
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore a position that `save` gave for the same config and at least these shards. Raises UserError if it was
        saved with other files."""
        self._files.check()
        self._files.compare(arrays[FILES])
        for shard in self.shards:
            prefix = shard_prefix(shard)
            index, ended = (int(value) for value in arrays[f"{prefix}position"])
            self._index, self._ended[shard] = index, bool(ended)
            self._iterators[shard] = iter(self._datasets[shard])
            if not ended:
                state = {name[len(prefix) :]: value for name, value in arrays.items() if name.startswith(prefix)}
                _restore_iterator(self._iterators[shard], state)

    def _next_rows(self, shard: int) -> Batch | None:
        rows = None if self._ended[shard] else self._read_rows(shard)
        if rows is None:
            if self.config.num_epochs is None:
                raise UserError(_no_examples_message(self.config, shard))
            self._ended[shard] = True
            return None
        arrays = {name: np.asarray(value) for name, value in rows.items()}
        if missing := self.config.of_batch(arrays).rows_per_shard - len(next(iter(arrays.values()))):
            arrays = {name: np.pad(value, ((0, missing), (0, 0))) for name, value in arrays.items()}
        return arrays

    def _read_rows(self, shard: int) -> Mapping[str, Any] | None:
        """The next rows of one shard; None at its end. SeqIO repeats a source before the steps that make examples:
        if these leave no example, it reads for ever, and a mixture waits for ever for a task without examples. So a
        thread reads the first rows, and all those of a mixture; if none have come after PATIENCE, one pass over each
        task finds the task without examples.
        """
        iterator = self._iterators[shard]
        if self.config.num_epochs is not None or (self._index > 0 and not self._may_wait):
            return next(iterator, None)
        reading = concurrent.futures.Future[Mapping[str, Any] | None]()

        def read() -> None:
            try:
                reading.set_result(next(iterator, None))
            except BaseException as error:
                reading.set_exception(error)

        threading.Thread(target=read, name="rows", daemon=True).start()
        try:
            return reading.result(timeout=PATIENCE)
        except TimeoutError:  # or the reader's own, which `result` raises again
            pass
        rate_of = getattr(self._provider, "get_rate", lambda task: 1.0)
        for task in tasks_of(self._provider):
            if reading.done():
                break
            if self.config.split in task.splits and rate_of(task):
                once = dataclasses.replace(self.config, mixture_or_task_name=task.name, num_epochs=1)
                if _count(_dataset(task, once, shard), 1) == 0:
                    raise UserError(_no_examples_message(once, shard))
        else:
            self._may_wait = False
        return reading.result()

    def _num_batches(self) -> int:
        """The number of batches of the whole stream. To count them, the shards that are not owned are read once."""
        if self._length is None:
            others = [shard for shard in range(self.config.num_virtual_shards) if shard not in self.shards]
            limit = self.config.max_batches
            counts = [_count(_dataset(self._provider, self.config, shard), limit) for shard in others]
            self._length = max([self._index, *counts])
        return self._length


def stream_identity(config: DatasetConfig, files: SourceFiles) -> dict[str, Any]:
    """The values that must be equal for a position to be valid: the settings, and the names and sizes of the files."""
    settings = config.to_json() | {"feature_converter": config.converter, "files": files.names_and_sizes()}
    for name in ("max_batches", "module_import", "metrics"):
        del settings[name]
    return settings


def with_relocatable_paths(provider: Provider) -> Provider:
    """The task or mixture, its files opened by names that do not depend on where the data and cache folders are."""

    def relocated(source: Any) -> Any:
        if not isinstance(source, seqio.FileDataSource):
            return source
        other = copy.copy(source)
        other.list_shards = lambda split: relocatable(source.list_shards(split))
        return other

    def relocated_task(task: seqio.Task) -> seqio.Task:
        copied = copy.copy(task)
        copied._source = relocated(task.source)
        copied._get_cached_source = lambda *arguments, **options: relocated(
            task._get_cached_source(*arguments, **options)
        )
        return copied

    open_folders()
    return map_tasks(provider, relocated_task)


def _dataset(provider: Provider, config: DatasetConfig, shard: int) -> tf.data.Dataset:
    """Batches of `rows_per_shard` rows of one virtual shard; the last, or the last of each bucket, may have fewer."""
    is_sharded = config.num_virtual_shards > 1
    arguments: dict[str, Any] = {"log_mixing_proportions": False} if isinstance(provider, seqio.Mixture) else {}

    def examples() -> tf.data.Dataset:
        return provider.get_dataset(
            config.task_feature_lengths,
            split=config.split,
            use_cached=config.use_cached,
            shuffle=config.shuffle,
            seed=_shard_seed(provider, config, shard),
            shard_info=seqio.ShardInfo(shard, config.num_virtual_shards) if is_sharded else None,
            num_epochs=config.num_epochs,
            try_in_mem_cache=False,
            **arguments,
        )

    dataset = without_autograph(examples)

    def model_features() -> tf.data.Dataset:
        return feature_converter(config)(dataset, task_feature_lengths=config.task_feature_lengths)

    # packing is a loop over tensors that only AutoGraph can read
    converted = model_features() if config.pack else without_autograph(model_features)
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_symbolic_checkpoint = False
    options.threading.private_threadpool_size = THREADS
    options.threading.max_intra_op_parallelism = 1
    options.autotune.cpu_budget = THREADS
    options.autotune.ram_budget = 256 << 20
    options.experimental_optimization.map_fusion = True  # a fifth less time on short examples
    if config.length_buckets is None:
        batched = converted.batch(config.rows_per_shard, drop_remainder=False)
    else:
        batched = without_autograph(lambda: _by_length(converted, config))
    return batched.prefetch(2).with_options(options)


def _by_length(examples: tf.data.Dataset, config: DatasetConfig) -> tf.data.Dataset:
    """Batches of the length buckets, in the order in which they become full. examples: padded to their features'
    lengths; those that wait in a bucket are part of the iterator, and so of its position."""
    lengths = tf.constant(list(config.buckets), tf.int64)
    rows = tf.constant([bucket.batch_size for bucket in config.buckets.values()], tf.int64)

    def bucket_of(example: Mapping[str, tf.Tensor]) -> tf.Tensor:
        # of an array of zeros: the least number
        ends = [tf.reduce_max(tf.where(array != 0)[:, 0] + 1) for array in example.values()]
        return tf.searchsorted(lengths, [tf.reduce_max(ends)], out_type=tf.int64)[0]

    def batch_of(bucket: tf.Tensor, bucket_examples: tf.data.Dataset) -> tf.data.Dataset:
        cut = lambda batch: {name: array[:, : lengths[bucket]] for name, array in batch.items()}  # noqa: E731
        return bucket_examples.batch(rows[bucket]).map(cut)

    return examples.group_by_window(bucket_of, batch_of, window_size_func=lambda bucket: rows[bucket])


def without_autograph(build: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
    """The dataset that `build` makes, if possible without AutoGraph, which takes five seconds to rewrite Python
    functions. A step with a Python `if` on a tensor needs AutoGraph: `build` is then called again with it."""
    try:
        return tf.autograph.experimental.do_not_convert(build)()
    except UserError:
        raise
    except Exception:  # of many types; if AutoGraph was not the reason, the same error comes again
        return build()


def _shard_seed(provider: Provider, config: DatasetConfig, shard: int) -> int:
    """The seed of one virtual shard. If a source has fewer files than there are shards, SeqIO shuffles it and then
    divides its examples: all shards must shuffle alike, or two would read the same examples. A single file has no
    order to shuffle; the examples of a function may have one."""

    def is_shuffled_whole(source: seqio.DataSource) -> bool:
        in_files = isinstance(source, seqio.FileDataSource | seqio.TfdsDataSource)
        return (1 if in_files else 0) < len(source.list_shards(config.split)) < config.num_virtual_shards

    tasks = [task for task in tasks_of(provider) if config.split in task.splits] if shard and config.shuffle else []
    if shard == 0 or any(is_shuffled_whole(source_of(task, config)) for task in tasks):
        return config.seed
    digest = hashlib.sha256(f"{config.seed} virtual shard {shard}".encode()).digest()
    return int.from_bytes(digest[:4], "little") % 2**31


def _count(dataset: tf.data.Dataset, limit: int | None) -> int:
    return sum(1 for _ in itertools.islice(dataset, limit))


def _no_examples_message(config: DatasetConfig, shard: int) -> str:
    name, split, number = config.mixture_or_task_name, config.split, config.num_virtual_shards
    if number > 1:
        return (
            f"Virtual shard {shard} of {number} of {name}, split {split!r}, has no examples: the split is too small to "
            "be divided so. Use fewer virtual shards (NUM_VIRTUAL_SHARDS), or more text."
        )
    return (
        f"{name}, split {split!r}, has no examples: there is no text, or none that its preprocessors make examples of. "
        "Export other text, or name another split."
    )


def _iterator_state(iterator: Any) -> dict[str, np.ndarray]:
    """The files of an iterator's checkpoint, as uint8 arrays."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            tf.train.Checkpoint(iterator=iterator).write(os.path.join(folder, _CHECKPOINT))
        except tf.errors.OpError as error:
            if folder not in error.message:  # an error of the iterator, not of the file
                raise
            raise _position_error(error.message.rpartition("; ")[2].partition(" [Op")[0]) from error
        contents = {name: Path(folder, file).read_bytes() for name, file in _CHECKPOINT_FILES.items()}
    return {name: np.frombuffer(content, np.uint8) for name, content in contents.items()}


def _position_error(reason: str) -> UserError:
    return UserError(
        f"The position of the data cannot be written into {tempfile.gettempdir()} ({reason}). Make room there, or name "
        "another folder with TMPDIR=…"
    )


def _restore_iterator(iterator: Any, arrays: Mapping[str, np.ndarray]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, file in _CHECKPOINT_FILES.items():
                Path(folder, file).write_bytes(arrays[name].tobytes())
        except OSError as error:
            raise _position_error(str(error.strerror)) from error
        try:
            checkpoint = tf.train.Checkpoint(iterator=iterator)
            checkpoint.read(os.path.join(folder, _CHECKPOINT)).assert_existing_objects_matched()
        except tf.errors.NotFoundError as error:
            if (match := re.search(r"from checkpoint: (.*?); No such file", error.message)) is None:
                raise
            raise UserError(
                f"The saved position of the data was taken while reading {match.group(1)}, which is not there. "
                "Put the file back to where it lay (a link will do)."
            ) from error
