"""One stream of batches out of the data process: read ahead by a thread, its position saved and put back."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.data.batch import Batch, validate
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.process import Arrays, DataProcessError

Request = Callable[..., tuple[dict[str, Any], Arrays]]  # `DataProcess.request`
_FILES = "files"  # what the files were: the data process compares


class Stream(Iterator[Batch]):
    """Batches of one dataset, validated, read ahead by a thread. Opened by `DataService.open`; for one consumer."""

    def __init__(
        self, request: Request, config: DatasetConfig, shards: list[int], prefetch: int, opened: Mapping[str, Any]
    ) -> None:
        self.config = config
        self.shards = tuple(shards)
        rows = config.rows_per_shard * len(shards)
        self.spec = config.batch_spec(rows, opened["vocab_size"])
        self.waited = 0.0  # seconds that __next__ has waited for a batch, in total
        self.batches_read = 0  # batches that __next__ has returned; the number of the next one
        self._request = request
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
        """The next batch: arrays of `rows_per_shard` rows for each shard that is owned. See `t5xpg.data.batch`.

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

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides the batches, as JSON: the settings, and names and sizes of the files."""
        return self._identity

    def wait(self) -> None:
        """Wait until there is a batch to give, or a reason why there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._buffer or self._ending is not None or self._stopped)

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
            _, arrays = self._request({"call": "save", "stream": self._number})
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
        if "last_batch" in arrays:
            raise UserError(
                "The run has gone on from a recording, and what it saved does not say where the live data stands. "
                "Continue with RECORDED=folder."
            )
        identity = json.loads(arrays["stream"].tobytes().decode("utf-8"))
        if _FILES in arrays:  # told apart one by one, below
            identity[_FILES] = self._identity[_FILES]
        self._check_same(identity)
        lacking = [shard for shard in self.shards if f"shard_{shard:05d}-position" not in arrays]
        if lacking:
            raise UserError(f"The saved position of the data has no virtual shard {lacking}: it is another process's.")
        own = tuple(f"shard_{shard:05d}-" for shard in self.shards)
        iterators = {name: value for name, value in arrays.items() if name.startswith(own) and "-ahead_" not in name}
        if _FILES in arrays:
            iterators[_FILES] = arrays[_FILES]
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
            self._request({"call": "restore", "stream": self._number}, iterators)
            self._buffer = deque(buffer)
            self.batches_read = int(arrays["batches_read"])
            self._ending = None

    def rewind(self) -> None:
        """Go back to the first batch: cheaper than opening the stream again."""
        with self._alone():
            self._request({"call": "rewind", "stream": self._number})
            self._buffer.clear()
            self.batches_read = 0
            self._ending = None

    def close(self) -> None:
        """Stop reading ahead and let the data process forget the stream."""
        self.stop()
        with contextlib.suppress(DataProcessError):  # it has forgotten, then
            self._request({"call": "close", "stream": self._number})

    def stop(self) -> None:
        """Stop reading ahead; whoever waits for a batch is told that the stream is closed."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _check_same(self, saved: Mapping[str, Any]) -> None:
        if listed := what_differs(saved, self._identity):
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
            reply, batch = self._request({"call": "next", "stream": self._number})
            if reply["end"]:
                return None, StopIteration()
            validate(batch, self.spec)
            return batch, None
        except Exception as error:
            return None, error
        except BaseException as error:  # whoever waits for a batch must hear of it, whatever ends this thread
            return None, DataProcessError(f"The thread that reads batches ahead has ended: {error!r}")


def what_differs(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How the stream of a saved position differs from this one: "seed was 1, is 2; …"; "" where it does not."""
    names = [name for name in sorted({*saved, *now}) if saved.get(name) != now.get(name)]
    return "; ".join(f"{name} was {saved.get(name)}, is {now.get(name)}" for name in names)
