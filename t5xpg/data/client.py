"""The training process's side of the data process: streams of NumPy batches, without TensorFlow.

TensorFlow takes seconds to import, memory and threads; here it does so in a process of its own, which starts at once
and is waited for only when the first thing is asked of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from t5xpg.data import data_process
from t5xpg.data.data_process import DataProcessError
from t5xpg.data.remote_evaluator import RemoteEvaluator
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream import Stream
from t5xpg.vocabularies import Vocabulary

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
    data_process.start_early(_environment(data_dir, cache_dir))


def _environment(data_dir: Path, cache_dir: Path) -> dict[str, str]:
    return {"T5XPG_DATA_DIR": str(Path(data_dir).resolve()), "T5XPG_CACHE_DIR": str(Path(cache_dir).resolve())}


class DataService:
    """The data process and the streams that it feeds. A context manager; leaving it ends the process.

    `data_dir` and `cache_dir` are where exported datasets and SeqIO caches lie. What the process prints goes to the
    file `log` where one is given; its end is shown if the process dies.
    """

    def __init__(self, *, data_dir: Path, cache_dir: Path, log: Path | None = None) -> None:
        self._process = data_process.take_process(_environment(data_dir, cache_dir), log)
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
