"""The training process's side of the data process: streams of NumPy batches, without TensorFlow.

TensorFlow takes seconds to import, memory and threads; here it does so in a process of its own, which starts at once
and is waited for only when the first thing is asked of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from t5xpg.batch import Batch, BatchSpec, validate
from t5xpg.data import protocol
from t5xpg.data.spec import DatasetConfig
from t5xpg.errors import UserError
from t5xpg.vocabularies import Vocabulary

Arrays = dict[str, np.ndarray]

_TAIL_LINES = 20
# what the data process needs to be there before its first import
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # TensorFlow takes all the memory of a GPU that it sees
    "JAX_PLATFORMS": "cpu",  # seqio imports JAX, which would open the accelerator
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",  # what is left of the log are errors
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


class DataProcessError(UserError):
    """The data process has ended or failed. The message holds its last lines: a traceback of this side adds nothing."""


@dataclass(frozen=True)
class SpanLengths:
    """What span corruption makes of the inputs' length: tokens of text in an example, of its targets, and spans."""

    noise_density: float
    mean_noise_span_length: float
    text_tokens: int
    target_tokens: int
    spans: int


@dataclass(frozen=True)
class TaskDescription:
    """What is known of a task or mixture before reading it."""

    name: str
    tasks: tuple[str, ...]  # of the mixture that have the split; the task itself
    splits: tuple[str, ...]
    cached: bool  # read from SeqIO caches
    examples: Mapping[str, int | None]  # in the source, by split, where known
    vocabulary: Vocabulary
    objective: SpanLengths | None  # of the first task; None where it has no span corruption
    has_metrics: bool  # whether a task has metric functions of its own


class DataService:
    """The data process and the streams that it feeds. A context manager; leaving it ends the process.

    `data_dir` and `cache_dir` are where exported datasets and SeqIO caches lie. What the process prints goes to the
    file `log` where one is given; its end is shown if the process dies.
    """

    def __init__(self, *, data_dir: Path, cache_dir: Path, log: Path | None = None) -> None:
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
        self._output = tempfile.TemporaryFile() if log is None else log.open("w+b")  # noqa: SIM115
        self._connection, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])
        path = os.environ.get("PYTHONPATH")
        environment = (
            os.environ
            | _ENVIRONMENT
            | {
                "T5XPG_DATA_DIR": str(Path(data_dir).resolve()),
                "T5XPG_CACHE_DIR": str(Path(cache_dir).resolve()),
                "PYTHONPATH": root + (os.pathsep + path if path else ""),
            }
        )
        self._lock = threading.Lock()
        self._streams: list[Stream] = []
        self._closed = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "t5xpg.data.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=environment,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C in the terminal does not reach it, not even while it starts
            )
        with contextlib.suppress(OSError):  # where it has died already, the first request says so
            protocol.send(self._connection, {"sys_path": [entry for entry in sys.path if entry]})

    @property
    def pid(self) -> int:
        """Process id of the data process."""
        return self._process.pid

    def describe(self, config: DatasetConfig) -> TaskDescription:
        """What is known of the task, after every check that can be made before reading.

        Raises UserError where the stream could not be read: an unknown task or split, files or a cache that are not
        there, targets too short for the objective, fewer sentinels than spans.
        """
        reply, _ = self._request({"call": "describe", "config": config.to_json()})
        objective = reply["objective"]
        return TaskDescription(
            name=reply["name"],
            tasks=tuple(reply["tasks"]),
            splits=tuple(reply["splits"]),
            cached=reply["cached"],
            examples=reply["examples"],
            vocabulary=Vocabulary.from_json(reply["vocabulary"]),
            objective=SpanLengths(**objective) if objective is not None else None,
            has_metrics=reply["has_metrics"],
        )

    def open(self, config: DatasetConfig, shards: Sequence[int] | None = None, prefetch: int = 2) -> Stream:
        """The stream of `config`, or of some of its virtual shards, before its first batch.

        `shards` are the virtual shards whose rows this process reads, ascending; None for all. `prefetch` batches are
        read ahead by a thread. Raises UserError as `describe` does.
        """
        owned = list(range(config.num_virtual_shards)) if shards is None else list(shards)
        if not owned or owned != sorted(set(owned)) or not 0 <= owned[0] <= owned[-1] < config.num_virtual_shards:
            raise ValueError(f"shards {owned}: expected ascending numbers from 0 to {config.num_virtual_shards - 1}")
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}: expected at least 1")
        reply, _ = self._request({"call": "open", "config": config.to_json(), "shards": owned})
        stream = Stream(self, config, owned, prefetch, reply)
        self._streams.append(stream)
        return stream

    def close(self) -> None:
        """End the data process and its streams."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        for stream in self._streams:
            stream._stop()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._connection.close()
        self._output.close()

    def __enter__(self) -> DataService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, message: dict[str, Any], arrays: Arrays | None = None) -> tuple[dict[str, Any], Arrays]:
        with self._lock:
            if self._closed:
                raise DataProcessError("The data process has been ended.")
            try:
                protocol.send(self._connection, message, arrays)
                reply, out = protocol.receive(self._connection)
            except (OSError, EOFError) as error:
                if self._closed:
                    raise DataProcessError("The data process has been ended.") from error
                raise DataProcessError(self._obituary()) from None
            except BaseException:  # Ctrl-C in the middle of a frame: what follows could not be told apart
                self._connection.shutdown(socket.SHUT_RDWR)
                raise
        if "error" in reply:
            if reply["error"] == "user":
                raise UserError(reply["text"])
            raise DataProcessError(f"The data process failed: {reply['text']}\n{reply['detail']}")
        return reply, out

    def _obituary(self) -> str:
        try:
            code: int | None = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        how = "has closed its connection"
        if code is not None and code >= 0:
            how = f"has ended with exit code {code}"
        elif code is not None:
            how = f"was ended by signal {-code}" + (" (out of memory?)" if code == -9 else "")
        self._output.flush()
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - 16384))
        lines = self._output.read().decode("utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        last = "Its last lines:\n" + "\n".join(f"  {line}" for line in lines) if lines else "It printed nothing."
        return f"The data process (python -m t5xpg.data.worker, process {self.pid}) {how}. {last}"


class Stream(Iterator[Batch]):
    """Batches of one dataset, validated, read ahead by a thread. Opened by `DataService.open`; for one consumer."""

    def __init__(
        self, service: DataService, config: DatasetConfig, shards: list[int], prefetch: int, opened: Mapping[str, Any]
    ) -> None:
        self.config = config
        self.shards = tuple(shards)
        rows = config.rows_per_shard * len(shards)
        self.spec = BatchSpec(rows, config.task_feature_lengths, config.pack, opened["vocab_size"])
        self.waited = 0.0  # seconds that __next__ has waited for a batch, in total
        self.batches_read = 0  # batches that __next__ has returned; the number of the next one
        self._service = service
        self._number = opened["stream"]
        self._identity = opened["identity"]
        self._prefetch = prefetch
        self._buffer: deque[Batch] = deque()
        self._ending: BaseException | None = None  # what comes after the buffer: StopIteration or an error
        self._changed = threading.Condition()
        self._fetching = False
        self._paused = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._read_ahead, name="batches", daemon=True)
        self._thread.start()

    def __next__(self) -> Batch:
        """The next batch: arrays of `rows_per_shard` rows for each shard that is owned. See `t5xpg.batch`.

        Raises StopIteration at the end of a finite stream, UserError for data that cannot be read, ValueError for a
        batch that is not one, DataProcessError where the data process has died.
        """
        with self._changed:
            if not self._buffer and self._ending is None:
                start = time.perf_counter()
                try:
                    self._changed.wait_for(lambda: self._buffer or self._ending is not None or self._stopped)
                finally:
                    self.waited += time.perf_counter() - start
            if not self._buffer:
                if self._ending is not None:
                    raise self._ending
                raise ValueError("the stream has been closed")
            self.batches_read += 1
            batch = self._buffer.popleft()
            self._changed.notify_all()
            return batch

    def state(self) -> Arrays:
        """The exact position: of the batch that `__next__` would return. Its cost does not grow with the position.

        Arrays whose names start with `shard_<index>-` belong to one virtual shard (its iterators, and its rows of the
        batches already read ahead); so the states that several processes take after the same batch are, together, the
        state of the whole stream.
        """
        with self._alone():
            # processes have read ahead as far as each other only where all have read as far as they may
            while len(self._buffer) < self._prefetch and self._ending is None:
                batch, self._ending = self._fetch()
                if batch is not None:
                    self._buffer.append(batch)
            if self._ending is not None and not isinstance(self._ending, StopIteration):
                raise self._ending
            _, arrays = self._service._request({"call": "save", "stream": self._number})
            rows = self.config.rows_per_shard
            for count, batch in enumerate(self._buffer):
                for name, array in batch.items():
                    for place, shard in enumerate(self.shards):
                        key = f"shard_{shard:05d}-ahead_{count:03d}-{name}"
                        arrays[key] = array[place * rows : (place + 1) * rows]
            arrays["batches_read"] = np.array(self.batches_read, np.int64)
            arrays["stream"] = np.frombuffer(json.dumps(self._identity).encode("utf-8"), np.uint8)
            return arrays

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue where `state` was taken, here or in another process, on these shards or more.

        Raises UserError where it was taken of a stream of other settings, other files, or without these shards.
        """
        arrays = {name: np.asarray(value) for name, value in state.items()}
        self._check_same(json.loads(arrays["stream"].tobytes().decode("utf-8")))
        lacking = [shard for shard in self.shards if f"shard_{shard:05d}-position" not in arrays]
        if lacking:
            raise UserError(f"The saved position of the data has no virtual shard {lacking}: it is another process's.")
        own = tuple(f"shard_{shard:05d}-" for shard in self.shards)
        iterators = {name: value for name, value in arrays.items() if name.startswith(own) and "-ahead_" not in name}
        if len({tuple(iterators[f"{prefix}position"][:1]) for prefix in own}) > 1:
            raise UserError("The saved positions of the data's virtual shards were not taken after the same batch.")
        ahead = int(iterators[f"{own[0]}position"][0]) - int(arrays["batches_read"])
        buffer = [
            {
                name: np.concatenate([arrays[f"{prefix}ahead_{count:03d}-{name}"] for prefix in own])
                for name in self.spec.features()
            }
            for count in range(ahead)
        ]
        with self._alone():
            self._service._request({"call": "restore", "stream": self._number}, iterators)
            self._buffer = deque(buffer)
            self.batches_read = int(arrays["batches_read"])
            self._ending = None

    def rewind(self) -> None:
        """Go back to the first batch: cheaper than opening the stream again."""
        with self._alone():
            self._service._request({"call": "rewind", "stream": self._number})
            self._buffer.clear()
            self.batches_read = 0
            self._ending = None

    def close(self) -> None:
        """Stop reading ahead and let the data process forget the stream."""
        self._stop()
        with contextlib.suppress(ValueError):
            self._service._streams.remove(self)
            with contextlib.suppress(DataProcessError):
                self._service._request({"call": "close", "stream": self._number})

    def _check_same(self, saved: Mapping[str, Any]) -> None:
        names = sorted({*saved, *self._identity})
        differing = [name for name in names if saved.get(name) != self._identity.get(name)]
        if differing:
            listed = "; ".join(f"{name} was {saved.get(name)}, is {self._identity.get(name)}" for name in differing)
            raise UserError(
                f"The saved position belongs to another stream of {saved.get('mixture_or_task_name')}: {listed}. "
                "Continue with the settings and the data that the run began with, or start a new run."
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The stream for this thread alone: nothing is being fetched, and nothing will be."""
        with self._changed:
            self._paused += 1
            try:
                self._changed.wait_for(lambda: not self._fetching)
                yield
            finally:
                self._paused -= 1
                self._changed.notify_all()

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _may_fetch(self) -> bool:
        return not self._paused and self._ending is None and len(self._buffer) < self._prefetch

    def _read_ahead(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._may_fetch())
                if self._stopped:
                    return
                self._fetching = True
            batch, ending = self._fetch()
            with self._changed:
                self._fetching = False
                self._ending = ending
                if batch is not None:
                    self._buffer.append(batch)
                self._changed.notify_all()

    def _fetch(self) -> tuple[Batch | None, BaseException | None]:
        try:
            reply, batch = self._service._request({"call": "next", "stream": self._number})
            if reply["end"]:
                return None, StopIteration()
            validate(batch, self.spec)
            return batch, None
        except Exception as error:
            return None, error
