"""The metrics of tasks for the training process, which gets them from the data process. No TensorFlow here."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base.files import Closing
from t5xpg.base.metric_values import MetricValue
from t5xpg.data.batch import Batch, validate
from t5xpg.data.data_process import DataProcess, DataProcessError
from t5xpg.data.spec import DatasetConfig, unpacked

Trivial = Mapping[str, Mapping[str, float]]  # {"copy", "majority": {metric: number}}


@dataclass(frozen=True)
class EvaluatedTask:
    """A task with metrics, the number of its examples, and the outputs that its metrics need. kinds: "prediction"
    (tokens), "prediction_with_aux" (and their log-likelihoods), "score" (the log-likelihood of the targets)."""

    name: str
    examples: int
    kinds: tuple[str, ...]


class RemoteEvaluator(Closing):
    """The tasks of a dataset that have metrics, by `DataService.evaluator`; their examples stay in the data process."""

    def __init__(self, server: DataProcess, config: DatasetConfig, opened: Mapping[str, Any]) -> None:
        self.tasks: tuple[EvaluatedTask, ...] = opened["tasks"]
        self.spec = unpacked(config).batch_spec(vocab_size=opened["vocab_size"])
        self._process = server
        self._number = opened["opened"]

    def batches(self, task: str) -> Iterator[tuple[Batch, int]]:
        """The batches of a task, each with its number of examples: the last batch is filled up with rows of zeros."""
        self._process.call(self._number, "begin", task=task)
        while arrays := self._process.call(self._number, "next"):
            rows = len(next(iter(arrays.values())))
            missing = self.spec.batch_size - rows
            batch = {
                name: np.pad(arrays[name].astype(dtype, copy=False), ((0, missing), (0, 0)))
                for name, (_, dtype) in self.spec.features().items()
            }
            validate(batch, self.spec)
            yield batch, rows

    def measure(
        self, outputs: Mapping[str, Mapping[str, np.ndarray]], step: int, inferences: Path | None = None
    ) -> dict[str, dict[str, MetricValue]]:
        """{task: {metric: value}}: the metrics of `seqio.Evaluator` for the model's outputs.

        outputs: {task: {"prediction": int32 [examples, T], "score", "prediction_scores": float32 [examples]}} in the
        order of `batches`, as the task's `kinds` need. inferences: a folder for texts, predictions and scores: one file
        of JSON lines per task. Raises UserError if a metric fails, or gives a value that records cannot hold.
        """
        folder = None if inferences is None else str(inferences.resolve())
        return dict(self._process.call(self._number, "measure", outputs=outputs, step=step, inferences=folder))

    def trivial(self) -> dict[str, Trivial]:
        """{task: {"copy", "majority": {metric: number}}}: the prediction metrics of two answers without a model.

        "copy" is the inputs without the task's prompt (user's own tasks: all of the inputs) or, for tasks of the next
        line of code, the line before it. "majority" is always the most frequent target of the split. The user's
        own tasks are left out if their functions do not take such answers but, for example, ids.
        """
        return dict(self._process.call(self._number, "trivial"))

    def close(self) -> None:
        """Let the data process forget the examples."""
        with contextlib.suppress(DataProcessError):  # a process that has ended has forgotten them
            self._process.request("close", opened=self._number)
