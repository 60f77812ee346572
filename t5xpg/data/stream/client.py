"""The training process's side of the data process: streams of NumPy batches, without TensorFlow.

TensorFlow takes seconds to import, memory and threads; here it does so in a process of its own, which starts at once
and is waited for only when the first thing is asked of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from t5xpg.base import metric_values
from t5xpg.base.metric_values import MetricValue
from t5xpg.data.batch import Batch, validate
from t5xpg.data.spec import DatasetConfig, unpacked
from t5xpg.data.stream import process
from t5xpg.data.stream.process import DataProcessError
from t5xpg.data.stream.stream import Request, Stream
from t5xpg.data.vocab.vocabulary import Vocabulary


@dataclass(frozen=True)
class EvaluatedTask:
    """A task with metrics: how many examples of it are measured, and what its metrics need of the model.

    kinds: "prediction" (tokens), "prediction_with_aux" (tokens and their log-likelihoods), "score" (the
    log-likelihood of the targets).
    """

    name: str
    examples: int
    kinds: tuple[str, ...]


class RemoteEvaluator:
    """The tasks of a dataset that have metrics. Made by `DataService.evaluator`; a context manager.

    The examples are read once and stay in the data process; they can be gone through and measured any number of times.
    """

    def __init__(self, request: Request, config: DatasetConfig, opened: Mapping[str, Any]) -> None:
        self.config = config
        self.tasks = tuple(
            EvaluatedTask(name, facts["examples"], tuple(facts["kinds"])) for name, facts in opened["tasks"].items()
        )
        self.spec = unpacked(config).batch_spec(vocab_size=opened["vocab_size"])
        self._request = request
        self._number = opened["evaluator"]

    def batches(self, task: str) -> Iterator[tuple[Batch, int]]:
        """The batches of a task, unpacked, and how many rows of each are examples: the rest of the last one is zeros.

        For one task at a time, to its end.
        """
        self._request({"call": "begin_task", "evaluator": self._number, "task": task})
        while True:
            reply, found = self._request({"call": "next_of_task", "evaluator": self._number})
            if reply["end"]:
                return
            rows = len(next(iter(found.values())))
            missing = self.spec.batch_size - rows
            batch = {
                name: np.pad(found[name].astype(dtype, copy=False), ((0, missing), (0, 0)))
                for name, (_, dtype) in self.spec.features().items()
            }
            validate(batch, self.spec)
            yield batch, rows

    def measure(
        self, outputs: Mapping[str, Mapping[str, np.ndarray]], step: int, inferences: Path | None = None
    ) -> dict[str, dict[str, MetricValue]]:
        """{task: {metric: value}}: what `seqio.Evaluator` says of the model's outputs.

        outputs: {task: {"prediction": int32 [examples, T], "score": float32 [examples], "prediction_scores": float32
          [examples]}}, the examples in the order of `batches`: what the `kinds` of the task need.
        inferences: a folder in which a file of JSON lines for every task gets its texts, predictions and scores.
        Raises UserError where a metric fails, or gives what records cannot hold.
        """
        places = [(task, kind) for task, arrays in outputs.items() for kind in arrays]
        message = {
            "call": "measure_tasks",
            "evaluator": self._number,
            "outputs": [list(place) for place in places],
            "step": step,
            "inferences": None if inferences is None else str(inferences.resolve()),
        }
        sent = {str(number): outputs[task][kind] for number, (task, kind) in enumerate(places)}
        reply, arrays = self._request(message, sent)
        measured = {}
        for number, (task, values) in enumerate(reply["metrics"]):
            own = {name.partition(" ")[2]: array for name, array in arrays.items() if name.startswith(f"{number} ")}
            measured[task] = metric_values.unpack(values, own)
        return measured

    def close(self) -> None:
        """Let the data process forget the examples."""
        with contextlib.suppress(DataProcessError):  # it has forgotten, then
            self._request({"call": "close_evaluator", "evaluator": self._number})

    def __enter__(self) -> RemoteEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["DataProcessError", "DataService", "RemoteEvaluator", "SpanLengths", "Stream", "TaskDescription"]


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


def start_early(*, data_dir: Path, cache_dir: Path) -> None:
    """Start the data process of the first `DataService` of these folders now."""
    process.start_early(_environment(data_dir, cache_dir))


def _environment(data_dir: Path, cache_dir: Path) -> dict[str, str]:
    return {"T5XPG_DATA_DIR": str(Path(data_dir).resolve()), "T5XPG_CACHE_DIR": str(Path(cache_dir).resolve())}


class DataService:
    """The data process and the streams that it feeds. A context manager; leaving it ends the process.

    `data_dir` and `cache_dir` are where exported datasets and SeqIO caches lie. What the process prints goes to the
    file `log` where one is given; its end is shown if the process dies.
    """

    def __init__(self, *, data_dir: Path, cache_dir: Path, log: Path | None = None) -> None:
        self._process = process.take_process(_environment(data_dir, cache_dir), log)
        self._streams: list[Stream] = []
        self._closed = False

    @property
    def pid(self) -> int:
        """Process id of the data process."""
        return self._process.pid

    def describe(self, config: DatasetConfig) -> TaskDescription:
        """What is known of the task, after every check that can be made before reading.

        Raises UserError where the stream could not be read: an unknown task or split, files or a cache that are not
        there, targets too short for the objective, fewer sentinels than spans.
        """
        reply, _ = self._process.request({"call": "describe", "config": config.to_json()})
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
        opened, _ = self._process.request({"call": "open", "config": config.to_json(), "shards": owned})
        stream = Stream(self._process.request, config, owned, prefetch, opened)
        self._streams.append(stream)
        return stream

    def evaluator(self, config: DatasetConfig) -> RemoteEvaluator:
        """The tasks of `config` that have metrics, their examples read: see `RemoteEvaluator`.

        `config.max_batches` limits the examples of each task. Raises UserError as `describe` does, and for a metric
        that needs what the model cannot be asked for.
        """
        opened, _ = self._process.request({"call": "evaluator", "config": config.to_json()})
        return RemoteEvaluator(self._process.request, config, opened)

    def close(self) -> None:
        """End the data process and its streams."""
        if self._closed:
            return
        self._closed = True
        self._process.hang_up()
        for stream in self._streams:
            stream.stop()
        self._process.wait()

    def __enter__(self) -> DataService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
