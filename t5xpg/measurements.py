"""How a run measures its state: the loss of the held-out split, that of each of its tasks, and the tasks' metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from t5xpg import paths
from t5xpg.assembly import Assembly
from t5xpg.data import known_tasks
from t5xpg.data.client import DataService, RemoteEvaluator, TaskDescription
from t5xpg.data.spec import DatasetConfig
from t5xpg.errors import UserError
from t5xpg.infer_eval import InferEval, TaskMetrics, metric_names, model_outputs
from t5xpg.selection import Selection, validation_names
from t5xpg.validation import AnyStream, EvalStep, TaskValidation, Validation, task_configs
from t5xpg.vocabularies import Vocabulary

if TYPE_CHECKING:
    from t5xpg.data.recorded import RecordedData


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
    """The measurements of a run on `config`, whose streams are opened at the first one of each kind.

    stream: gives that of the whole split. eval_step: (params, batch on devices) -> sums.
    """

    def task_streams() -> dict[str, AnyStream]:
        tasks = task_configs(config, describe(service, config))
        return {task.mixture_or_task_name: service.open(task) for task in tasks}

    def evaluator() -> RemoteEvaluator:
        assert isinstance(service, DataService), "refused by require_metrics"
        return service.evaluator(dataclasses.replace(config, max_batches=built.experiment.infer_eval_steps))

    return Measurements(
        Validation(stream, eval_step, built.on_devices).measure,
        TaskValidation(task_streams, eval_step, built.on_devices).measure,
        InferEval(evaluator, model_outputs(built, vocabulary)).measure,
    )


def describe(service: DataService | RecordedData, config: DatasetConfig) -> TaskDescription:
    """What is known of the task: without waiting for the data process, where that is possible."""
    known = known_tasks.describe(config, paths.data_directory()) if isinstance(service, DataService) else None
    return known or service.describe(config)


def require_metrics(service: DataService | RecordedData, config: DatasetConfig) -> None:
    """Raise UserError where the metrics of tasks, which a run is to compute, cannot be: INFER_EVAL_PERIOD is set."""
    if not isinstance(service, DataService):
        raise UserError(
            "INFER_EVAL_PERIOD is set, and a recording holds no metrics of tasks: train from the live data, or set "
            "INFER_EVAL_PERIOD=None (`make eval` computes them afterwards)."
        )
    if not describe(service, config).has_metrics:
        raise UserError(no_metrics(config.mixture_or_task_name))


def require_selection(service: DataService | RecordedData, config: DatasetConfig, selection: Selection) -> None:
    """Raise UserError, with the nearest names, where the metric that a run is selected by is none of its own."""
    if selection.of_validation:
        tasks = [task.mixture_or_task_name for task in task_configs(config, describe(service, config))]
        selection.require(validation_names(tasks))
    elif isinstance(service, DataService):  # a recording has none: `require_metrics` has said so
        with service.evaluator(dataclasses.replace(config, max_batches=1)) as evaluator:
            selection.require(metric_names(evaluator))


def no_metrics(task: str) -> str:
    """What is said of a task without metrics where INFER_EVAL_PERIOD asks for them."""
    return f"INFER_EVAL_PERIOD is set, and {task} has no metrics (metric_fns): set INFER_EVAL_PERIOD=None."
