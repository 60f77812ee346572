"""The measurements of a run: the loss of the held-out split, that of each of its tasks, and the tasks' metrics."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from t5xpg.base.errors import UserError
from t5xpg.data.recording.reader import RecordedData
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.data.stream.remote_evaluator import RemoteEvaluator, Trivial
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.infer_eval import InferEval, TaskMetrics, metric_names, model_outputs
from t5xpg.evaluate.validation import CACHE_BYTES, AnyStream, EvalStep, Summary, Validation, measure_tasks, task_configs
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.identity import data_config
from t5xpg.run.best import BestMetric, validation_names


@dataclass(frozen=True)
class Measurements:
    """Functions of parameters, with a `Progress` where it is shown. metrics: see `infer_eval.InferEval.measure`.
    trivial: the metrics of answers without a model."""

    loss: Callable[..., Summary]
    loss_by_task: Callable[..., Mapping[str, Summary]]
    metrics: Callable[..., Sequence[TaskMetrics]]
    trivial: Callable[[], Mapping[str, Trivial]]


def measurements(
    built: Assembly,
    service: DataService | RecordedData,
    config: DatasetConfig,
    vocabulary: Vocabulary,
    stream: Callable[[], AnyStream],
    eval_step: EvalStep,
    metrics_config: DatasetConfig | None = None,
) -> Measurements:
    """The measurements of a run: losses on `config`, metrics on `metrics_config` (None: the experiment's dataset for
    them).

    The first one of each kind opens its streams. stream: returns the stream of the whole split. eval_step: (params,
    batch on devices) -> sums.
    """
    of_metrics = built if metrics_config else dataclasses.replace(built, experiment=built.experiment.of_metrics)

    @functools.cache
    def by_task() -> dict[str, Validation]:
        tasks = task_configs(config, service.describe(config))
        cache_bytes = CACHE_BYTES // max(1, len(tasks))
        streams = {task.mixture_or_task_name: service.open(task) for task in tasks}
        return {name: Validation(one, eval_step, built.on_devices, cache_bytes) for name, one in streams.items()}

    def evaluator() -> RemoteEvaluator:
        assert isinstance(service, DataService), "refused by require_metrics"
        experiment = of_metrics.experiment
        own = data_config(experiment.eval_dataset, experiment.random_seed)
        own = dataclasses.replace(own, max_batches=experiment.infer_eval_steps)
        return service.evaluator(metrics_config or own)

    infer_eval = InferEval(evaluator, model_outputs(of_metrics, vocabulary))
    return Measurements(
        Validation(stream, eval_step, built.on_devices).measure,
        lambda params, progress=None: measure_tasks(by_task(), params, progress),
        infer_eval.measure,
        infer_eval.trivial,
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
