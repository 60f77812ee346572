"""The metrics of tasks for a model: it computes predictions and scores, the data process computes the metrics."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5xpg.base import metric_values
from t5xpg.base.errors import UserError
from t5xpg.base.progress import Progress
from t5xpg.data import batch
from t5xpg.data.batch import ENC_DEC, PREFIX_LM, Batch, inputs_and_targets, with_targets
from t5xpg.data.spec import unpacked
from t5xpg.data.stream.remote_evaluator import EvaluatedTask, RemoteEvaluator, Trivial
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.distributed import jit_eval_step
from t5xpg.evaluate.allowed import constraint_of
from t5xpg.evaluate.consensus import rank_sequences
from t5xpg.evaluate.predictor import decoding_settings, predict
from t5xpg.experiment.assembly import Assembly
from t5xpg.models import decoding
from t5xpg.models.decoding import Decoded
from t5xpg.models.model import Params

SPLIT = "infer_eval"  # in records
TOGETHER = 64  # batches that are in memory at once


@dataclass(frozen=True)
class ModelOutputs:
    """Functions that compute a model's outputs for an unpacked batch of `batch.BatchSpec`, on the host.

    predict: (params, batch, row_numbers) -> int32 [B, T], each row up to its end token, then 0. row_numbers: int32 [B],
    the numbers of the rows in their task; sampling uses them. score: (params, batch) -> float32 [B], the log-likelihood
    of each row's targets in nats. For rows of zeros they may be anything. decoding: `decoding_settings`.
    """

    predict: Callable[[Params, Batch, np.ndarray], np.ndarray]
    score: Callable[[Params, Batch], np.ndarray]
    decoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class TaskMetrics:
    """The metrics of one task over `examples` examples. decoding: `decoding_settings`; {} where only scores count."""

    task: str
    examples: int
    metrics: Mapping[str, metric_values.MetricValue]
    decoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_record(self, step: int) -> dict[str, Any]:
        """A line of metrics.jsonl: {"step", "split": "infer_eval", "task", "examples", "decoding", "metrics"}."""
        metrics = {name: metric_values.to_record(value) for name, value in self.metrics.items()}
        facts = {"step": step, "split": SPLIT, "task": self.task, "examples": self.examples}
        return {**facts, "decoding": dict(self.decoding), "metrics": metrics}

    def __str__(self) -> str:
        """One line: the metrics that are one number."""
        numbers = {name: value for name, value in self.metrics.items() if metric_values.is_number(value)}
        shown = ", ".join(f"{name} {metric_values.format_value(value)}" for name, value in numbers.items())
        return f"{self.task}: {shown or 'no numbers'} ({self.examples:,} examples)"


class InferEval:
    """Measures parameters on an evaluator's tasks, always on the same examples. The first use opens the evaluator."""

    def __init__(self, open_evaluator: Callable[[], RemoteEvaluator], outputs: ModelOutputs) -> None:
        self._open = open_evaluator
        self._outputs = outputs

    @functools.cached_property
    def _evaluator(self) -> RemoteEvaluator:
        return self._open()

    def measure(self, params: Params, step: int, inferences: Path | None = None) -> list[TaskMetrics]:
        """The metrics of every task that has some. Shows its progress.

        inferences: a folder for the predictions, see `RemoteEvaluator.measure`. Raises UserError where a metric cannot
        be computed or recorded.
        """
        evaluator = self._evaluator
        for task in evaluator.tasks:
            _check_scores(task, evaluator.spec)
        examples = {task.name: task.examples for task in evaluator.tasks}
        with Progress("metrics", sum(examples.values()), "examples") as progress:
            outputs = {task.name: self._outputs_of(task, params, progress) for task in evaluator.tasks}
            measured = evaluator.measure(outputs, step, inferences)
        decoded = {task.name for task in evaluator.tasks if set(task.kinds) - {"score"}}
        return [
            TaskMetrics(task, examples[task], metrics, self._outputs.decoding if task in decoded else {})
            for task, metrics in measured.items()
        ]

    def trivial(self) -> dict[str, Trivial]:
        """See `RemoteEvaluator.trivial`."""
        return self._evaluator.trivial()

    def _outputs_of(self, task: EvaluatedTask, params: Params, progress: Progress) -> dict[str, np.ndarray]:
        """The outputs for a task, {kind: an array with a row for each example}, in the order of its examples.

        A batch takes as long to decode as its longest row: so the examples of TOGETHER batches are computed in the
        order of their lengths, the longest first.
        """
        size, batches = self._evaluator.spec.batch_size, self._evaluator.batches(task.name)
        outputs: dict[str, np.ndarray] = {}
        first_row = 0
        while group := list(itertools.islice(batches, TOGETHER)):
            rows = {name: np.concatenate([padded[name] for padded, _ in group]) for name in group[0][0]}
            inputs = next(iter(rows.values()))  # or, of a decoder alone, inputs and targets
            order = np.argsort(-np.count_nonzero(inputs, axis=1), kind="stable")
            for batch_rows in order.reshape(-1, size):
                padded = {name: array[batch_rows] for name, array in rows.items()}
                row_numbers = (first_row + batch_rows).astype(np.int32)
                are_examples = row_numbers < task.examples
                for kind, computed in self._outputs_of_batch(task, params, padded, row_numbers).items():
                    collected = outputs.setdefault(kind, np.zeros((task.examples, *computed.shape[1:]), computed.dtype))
                    collected[row_numbers[are_examples]] = computed[are_examples]
                progress.advance(int(are_examples.sum()), task.name)
            first_row += len(order)
        return outputs

    def _outputs_of_batch(
        self, task: EvaluatedTask, params: Params, padded: Batch, row_numbers: np.ndarray
    ) -> dict[str, np.ndarray]:
        """{kind: an array of B rows} for a batch of B rows. row_numbers: see `ModelOutputs`."""
        outputs: dict[str, np.ndarray] = {}
        if "score" in task.kinds:
            outputs["score"] = self._outputs.score(params, padded)
        if {"prediction", "prediction_with_aux"} & set(task.kinds):
            outputs["prediction"] = self._outputs.predict(params, padded, row_numbers)
        if "prediction_with_aux" in task.kinds:
            predicted = with_targets(padded, outputs["prediction"], self._evaluator.spec)
            outputs["prediction_scores"] = self._outputs.score(params, predicted)
        return outputs


def _check_scores(task: EvaluatedTask, spec: batch.BatchSpec) -> None:
    """Raise UserError where a metric of the task needs scores that batches of `spec` do not give."""
    if "score" in task.kinds and "decoder_target_tokens" not in spec.layout.arrays:
        needs = "(targets, scores)"
    elif "prediction_with_aux" in task.kinds and spec.feature_converter not in (ENC_DEC, PREFIX_LM):
        needs = "(targets, predictions, aux_values)"
    else:
        return
    raise UserError(
        f"A metric of {task.name} is a function of {needs}, and a model of batches of {spec.feature_converter} gives "
        "no such scores: set METRICS to metrics of (targets, predictions), as in METRICS=('exact_match',)."
    )


def metric_names(evaluator: RemoteEvaluator) -> list[str]:
    """The names, "<task>/<metric>", of the metrics that are numbers. They are known only once metrics are computed:
    here with the targets as predictions."""
    outputs: dict[str, dict[str, np.ndarray]] = {}
    for task in evaluator.tasks:
        targets = np.concatenate(
            [inputs_and_targets(batch, evaluator.spec)[1][:rows] for batch, rows in evaluator.batches(task.name)]
        )
        scores = np.zeros(len(targets), np.float32)
        outputs[task.name] = {"prediction": targets, "score": scores, "prediction_scores": scores}
    return [
        f"{task}/{name}"
        for task, values in evaluator.measure(outputs, step=0).items()
        for name, value in values.items()
        if metric_values.is_number(value)
    ]


def model_outputs(built: Assembly, vocabulary: Vocabulary) -> ModelOutputs:
    """Predictions by the experiment's decoding, and scores, over the mesh; each is compiled at its first call."""
    experiment = built.experiment
    spec = unpacked(experiment.eval_dataset).batch_spec()

    def predict_tokens(
        params: Params, features: Mapping[str, jax.Array], row_numbers: jax.Array, constraint: Any
    ) -> jax.Array:
        return predict(experiment, vocabulary, params, features["inputs"], row_numbers, constraint).tokens

    def score(params: Params, batch: Mapping[str, jax.Array]) -> jax.Array:
        return decoding.score(experiment.model, params, batch)

    def on_host(function: Callable[..., jax.Array], num_extra: int = 0) -> Callable[..., np.ndarray]:
        compiled = jit_eval_step(function, built.mesh, built.model_params_shardings, num_extra, experiment.mesh.rules)

        def call(params: Params, batch: Mapping[str, np.ndarray], *extra: np.ndarray) -> np.ndarray:
            return np.asarray(jax.device_get(compiled(params, built.on_devices(batch), *extra)))

        return call

    predictions, constraint = on_host(predict_tokens, num_extra=2), constraint_of(experiment, vocabulary)

    def predict_rows(params: Params, batch: Batch, row_numbers: np.ndarray) -> np.ndarray:
        tokens: Any = predictions(params, {"inputs": inputs_and_targets(batch, spec)[0]}, row_numbers, constraint)
        return np.asarray(rank_sequences(Decoded(tokens, None), experiment.decoding, vocabulary).tokens[:, 0])

    return ModelOutputs(predict_rows, on_host(score), decoding_settings(experiment))
