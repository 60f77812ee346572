"""The measurements of a run: the loss of the held-out split, that of each of its tasks, and the tasks' metrics."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.data.recording.reader import RecordedData
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.data.stream.remote_evaluator import RemoteEvaluator
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.infer_eval import InferEval, TaskMetrics, metric_names, model_outputs
from t5xpg.evaluate.validation import AnyStream, EvalStep, TaskValidation, Validation, task_configs
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.identity import data_config
from t5xpg.run.best import BestMetric, validation_names


@dataclass(frozen=True)
class Measurements:
    """Functions of parameters. metrics: of (parameters, step), as `infer_eval.InferEval.measure`."""

    loss: Callable[[Any], Mapping[str, Any]]
    loss_by_task: Callable[[Any], Mapping[str, Mapping[str, Any]]]
    metrics: Callable[[Any, int], Sequence[TaskMetrics]]


def measurements(
    built: Assembly,
    service: DataService | RecordedData,
    config: DatasetConfig,
    vocabulary: Vocabulary,
    stream: Callable[[], AnyStream],
    eval_step: EvalStep,
) -> Measurements:
    """The measurements of a run: losses on `config`, metrics on the experiment's dataset for them.

    The first one of each kind opens its streams. stream: returns the stream of the whole split. eval_step: (params,
    batch on devices) -> sums.
    """
    of_metrics = dataclasses.replace(built, experiment=built.experiment.of_metrics)

    def task_streams() -> dict[str, AnyStream]:
        tasks = task_configs(config, service.describe(config))
        return {task.mixture_or_task_name: service.open(task) for task in tasks}

    def evaluator() -> RemoteEvaluator:
        assert isinstance(service, DataService), "refused by require_metrics"
        experiment = of_metrics.experiment
        metrics_config = data_config(experiment.eval_dataset, experiment.random_seed)
        return service.evaluator(dataclasses.replace(metrics_config, max_batches=experiment.infer_eval_steps))

    return Measurements(
        Validation(stream, eval_step, built.on_devices).measure,
        TaskValidation(task_streams, eval_step, built.on_devices).measure,
        InferEval(evaluator, model_outputs(of_metrics, vocabulary)).measure,
    )


def require_metrics(service: DataService | RecordedData, config: DatasetConfig) -> None:
    """Raise UserError if a run that has INFER_EVAL_PERIOD cannot compute metrics of its tasks."""
    if not isinstance(service, DataService):
        raise UserError(
            "INFER_EVAL_PERIOD is set, and a recording holds no metrics of tasks: train from the live data, or set "
            "INFER_EVAL_PERIOD=None (`make eval` computes them afterwards)."
        )
    if not service.describe(config).has_metrics:
        raise UserError(no_metrics(config.mixture_or_task_name))


def require_selection(service: DataService | RecordedData, config: DatasetConfig, selection: BestMetric) -> None:
    """Raise UserError, with the nearest names, if a run does not measure the metric that it is selected by."""
    if selection.of_validation:
        tasks = [task.mixture_or_task_name for task in task_configs(config, service.describe(config))]
        selection.require(validation_names(tasks))
    elif isinstance(service, DataService):  # a recording has no metrics: `require_metrics` has said so
        with service.evaluator(dataclasses.replace(config, max_batches=1)) as evaluator:
            selection.require(metric_names(evaluator))


def no_metrics(task: str) -> str:
    """The message about a task without metrics although INFER_EVAL_PERIOD asks for them."""
    return f"INFER_EVAL_PERIOD is set, and {task} has no metrics (metric_fns): set INFER_EVAL_PERIOD=None."
