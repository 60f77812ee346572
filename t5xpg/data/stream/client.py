"""Streams of NumPy batches for the training process. TensorFlow, which takes memory, threads and seconds to import,
runs in a separate data process, behind a `DataService`.

    with DataService() as service:
        stream = service.open(config, shards=[0, 1])
        batch = next(stream)
        position = stream.state()
"""

import abc
import concurrent.futures
import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import Closing
from t5xpg.data.batch import Batch, validate
from t5xpg.data.data_process import FILES, Arrays, DataProcess, DataProcessError, shard_prefix
from t5xpg.data.objectives.span_corruption import SpanLengths
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.length_fit import LengthFit
from t5xpg.data.stream.remote_evaluator import RemoteEvaluator
from t5xpg.data.vocab.vocabulary import Vocabulary

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class TaskDescription:
    """Facts about a task or mixture, known before it is read."""

    name: str
    tasks: tuple[str, ...]  # the tasks of the mixture that have the split, or the task itself
    splits: tuple[str, ...]
    cached: bool  # read from SeqIO caches
    examples: Mapping[str, int | None]  # in the source, by split; None if unknown
    vocabulary: Vocabulary
    objective: SpanLengths | None  # None unless all tasks have the same span corruption
    has_metrics: bool  # whether a task has metric functions of its own

    @classmethod
    def from_json(cls, value: Mapping[str, Any], vocabulary: Vocabulary) -> "TaskDescription":
        """The description from its other fields as JSON. Raises KeyError or TypeError for any other value."""
        names = {name: tuple(value[name]) for name in ("tasks", "splits")}
        objective = None if value["objective"] is None else SpanLengths(**value["objective"])
        return cls(**{**value, **names, "vocabulary": vocabulary, "objective": objective})


class NoBatchYetError(Exception):
    """The wait for a batch was given up: see `BatchStream.gives_up`."""


class BatchStream(Iterator[Batch]):
    """Batches of one dataset, `prefetch` of them read ahead by a thread. For one consumer. Subclasses define `_read`.

    shards: the virtual shards of the rows, ascending. spec: names, shapes and dtypes; with length buckets, of the
    longest. identity: the settings and files that decide the batches, as JSON. batches_read: the number that `__next__`
    has returned. waited: the seconds that it has waited, in total. gives_up: called while it waits; true ends the wait.
    """

    def __init__(
        self,
        config: DatasetConfig,
        shards: Sequence[int],
        prefetch: int,
        identity: Mapping[str, Any],
        vocab_size: int | None,
    ) -> None:
        self.config = config
        self.shards = tuple(shards)
        self.spec = config.batch_spec(config.rows_per_shard * len(shards), vocab_size)
        self.identity = dict(identity)
        self.batches_read = 0
        self.waited = 0.0
        self.gives_up: Callable[[], bool] = lambda: False
        self._prefetch = prefetch
        self._ahead: deque[Future[Batch | None]] = deque()  # batches from `batches_read` on; None behind the last one
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._closed = False
        self._read_ahead()

    @abc.abstractmethod
    def _read(self, number: int) -> Batch | None:
        """Read batch `number`, in the thread that reads ahead; None after the last batch of a finite stream."""

    def __next__(self) -> Batch:
        """The next batch: `rows_per_shard` rows (of its length bucket) for each of `shards`. Raises the error of
        reading it, and NoBatchYetError once `gives_up` returns true: the stream then stays before this batch."""
        if self._closed:
            raise ValueError("the stream has been closed")
        self._read_ahead()
        start = time.perf_counter()
        try:
            while not concurrent.futures.wait([self._ahead[0]], _POLL_SECONDS).done:
                if self.gives_up():
                    raise NoBatchYetError
            batch = self._ahead[0].result()
        finally:
            self.waited += time.perf_counter() - start
        if batch is None:
            raise StopIteration
        self._ahead.popleft()
        self.batches_read += 1
        self._read_ahead()
        return batch

    def close(self) -> None:
        """Stop reading ahead."""
        self._closed = True
        self._thread.shutdown(cancel_futures=True)

    def _read_ahead(self) -> None:
        for number in range(self.batches_read + len(self._ahead), self.batches_read + self._prefetch):
            self._ahead.append(self._thread.submit(self._read, number))

    def _seek(self, number: int, ahead: Sequence[Batch] = (), moved: Callable[[], object] = lambda: None) -> None:
        """Set the position to `number`. ahead: batches read already. moved: called while the thread reads nothing."""
        while self._ahead and self._ahead[-1].cancel():
            self._ahead.pop()
        concurrent.futures.wait(self._ahead)
        moved()
        self._ahead.clear()
        self.batches_read = number
        for batch in ahead:
            self._ahead.append(Future())
            self._ahead[-1].set_result(batch)
        self._read_ahead()


class Stream(BatchStream):
    """Batches from the data process, opened by `DataService.open`. `__next__` raises UserError for data that cannot be
    read, ValueError for a batch that does not fit `spec`, DataProcessError if the process has died."""

    def __init__(
        self, server: DataProcess, config: DatasetConfig, shards: Sequence[int], prefetch: int, opened: dict[str, Any]
    ) -> None:
        self._process = server
        self._number = opened["opened"]
        super().__init__(config, shards, prefetch, opened["identity"], opened["vocab_size"])

    def _read(self, number: int) -> Batch | None:
        batch: Batch | None = self._process.call(self._number, "next")
        if batch is None:
            return None
        bucket = self.config.of_batch(batch)
        validate(batch, bucket.batch_spec(bucket.rows_per_shard * len(self.shards), self.spec.vocab_size))
        return batch

    def state(self) -> Arrays:
        """The exact position of the next batch. Arrays `shard_<index>-…` belong to one virtual shard. The states that
        several processes take after the same batch together form the state of the whole stream."""
        self._read_ahead()  # each process reads as far ahead as it may: only then have all read equally far
        ahead = [batch for future in self._ahead if (batch := future.result()) is not None]
        arrays: Arrays = self._process.call(self._number, "save")
        for count, batch in enumerate(ahead):
            for name, array in batch.items():
                rows = len(array) // len(self.shards)
                for index, shard in enumerate(self.shards):
                    key = f"{shard_prefix(shard)}ahead_{count:03d}-{name}"
                    arrays[key] = array[index * rows : (index + 1) * rows]
        arrays["batches_read"] = np.array(self.batches_read, np.int64)
        arrays["stream"] = np.frombuffer(json.dumps(self.identity).encode("utf-8"), np.uint8)
        return arrays

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue at the position of `state`, which covers these shards. UserError for a state of another stream."""
        arrays = {name: np.asarray(value) for name, value in state.items()}
        if "last_batch" in arrays:
            raise UserError(
                "The run has gone on from a recording, and what it saved does not say where the live data stands. "
                "Continue with RECORDED=folder."
            )
        saved = json.loads(arrays["stream"].tobytes().decode("utf-8"))
        saved[FILES] = self.identity[FILES]  # compared one by one in the data process, which names those that differ
        if differences := stream_differences(saved, self.identity):
            raise UserError(
                f"The saved position belongs to another stream of {saved.get('mixture_or_task_name')}: {differences}. "
                "Continue with the settings and the data that the run began with, or start a new run."
            )
        if missing := [shard for shard in self.shards if f"{shard_prefix(shard)}position" not in arrays]:
            raise UserError(f"The saved position of the data has no virtual shard {missing}: it is another process's.")
        prefixes = tuple(map(shard_prefix, self.shards))
        iterators = {
            name: array
            for name, array in arrays.items()
            if name == FILES or (name.startswith(prefixes) and "-ahead_" not in name)
        }
        if len({tuple(iterators[f"{prefix}position"][:1]) for prefix in prefixes}) > 1:
            raise UserError("The saved positions of the data's virtual shards were not taken after the same batch.")
        batches_read = int(arrays["batches_read"])
        ahead: list[Batch] = [
            {
                name: np.concatenate([arrays[f"{prefix}ahead_{count:03d}-{name}"] for prefix in prefixes])
                for name in self.spec.features()
            }
            for count in range(int(iterators[f"{prefixes[0]}position"][0]) - batches_read)
        ]
        self._seek(batches_read, ahead, lambda: self._process.call(self._number, "restore", arrays=iterators))

    def rewind(self) -> None:
        """Go back to the first batch: cheaper than to open the stream again."""
        self._seek(0, moved=lambda: self._process.call(self._number, "rewind"))

    def close(self) -> None:
        """Stop reading ahead and let the data process forget the stream."""
        super().close()
        with contextlib.suppress(DataProcessError):  # a process that has ended has forgotten it
            self._process.request("close", opened=self._number)


def stream_differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The differences between the stream of a saved position and this one: "seed was 1, is 2; …"; "" without any."""
    names = [name for name in sorted({*saved, *now}) if saved.get(name) != now.get(name)]
    return "; ".join(f"{name} was {saved.get(name)}, is {now.get(name)}" for name in names)


def check_shards(config: DatasetConfig, shards: Sequence[int] | None, prefetch: int) -> list[int]:
    """The virtual shards to read, all of them for None. Raises ValueError for wrong shards or prefetch."""
    all_shards = range(config.num_virtual_shards)
    owned = list(all_shards if shards is None else shards)
    if not owned or owned != [shard for shard in all_shards if shard in owned]:
        raise ValueError(f"shards {owned}: expected ascending numbers from 0 to {all_shards[-1]}")
    if prefetch < 1:
        raise ValueError(f"prefetch is {prefetch}: expected at least 1")
    return owned


class DataService(Closing):
    """The data process and its streams; a context manager, which ends the process. data_dir, cache_dir: None for the
    folders of `base.paths`. log: the file for the process's output, whose last lines are shown if the process dies."""

    def __init__(self, *, data_dir: Path | None = None, cache_dir: Path | None = None, log: Path | None = None) -> None:
        self._process = DataProcess("t5xpg.data.stream.worker", data_dir=data_dir, cache_dir=cache_dir, log=log)
        self.pid = self._process.pid
        self._streams: list[Stream] = []

    def describe(self, config: DatasetConfig) -> TaskDescription:
        """The facts about the task. Raises UserError if the stream cannot be read: for an unknown task or split, no
        files or cache, targets too short for the objective, fewer sentinels than spans."""
        found: TaskDescription = self._process.request("describe", config=config.to_json())
        return found

    def fits(self, config: DatasetConfig) -> list[LengthFit]:
        """The fit of each supervised task's first examples to its lengths and vocabulary. UserError as `describe`."""
        return list(self._process.request("fits", config=config.to_json()))

    def open(self, config: DatasetConfig, shards: Sequence[int] | None = None, prefetch: int = 2) -> Stream:
        """The stream of `config`, before its first batch. shards: the virtual shards to read, ascending; None for all.
        prefetch: the number of batches that a thread reads ahead. Raises UserError as `describe` does."""
        owned = check_shards(config, shards, prefetch)
        opened = self._process.request("open", config=config.to_json(), shards=owned)
        stream = Stream(self._process, config, owned, prefetch, opened)
        self._streams.append(stream)
        return stream

    def evaluator(self, config: DatasetConfig) -> RemoteEvaluator:
        """The tasks of `config` that have metrics, with at most `config.max_batches` batches of each. Raises UserError
        as `describe` does, for a task without examples, and for a metric of unsupported model outputs."""
        opened = self._process.request("evaluator", config=config.to_json())
        return RemoteEvaluator(self._process, config, opened)

    def close(self) -> None:
        """End the data process and its streams."""
        self._process.hang_up()
        for stream in self._streams:
            stream.close()
        self._process.wait()
