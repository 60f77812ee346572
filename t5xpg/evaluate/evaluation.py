"""`make eval`: a checkpoint's loss on a whole held-out split, the metrics of its tasks, and sample predictions."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base import environment, metric_values
from t5xpg.base.files import read_json, write_atomically, write_json
from t5xpg.base.markdown import aligned
from t5xpg.base.paths import shown
from t5xpg.base.progress import Progress
from t5xpg.data.batch import inputs_and_targets
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService, Stream
from t5xpg.data.stream.remote_evaluator import Trivial
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate import blanks, samples
from t5xpg.evaluate.baselines import unigram_of_training
from t5xpg.evaluate.infer_eval import SPLIT, InferEval, TaskMetrics, model_outputs
from t5xpg.evaluate.infer_sources import replace_fields
from t5xpg.evaluate.prediction import predicts
from t5xpg.evaluate.trained_model import (
    Step,
    check_same_model,
    check_same_vocabulary,
    checkpoints_in_mean,
    parameters_and_vocabulary,
)
from t5xpg.evaluate.validation import Summary, TaskValidation, Validation, task_configs
from t5xpg.experiment import assembly, data_state, prepare
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.identity import data_config, run_identity
from t5xpg.run import metrics
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import TensorBoardWriter, read_jsonl, record_line, to_json
from t5xpg.run.results import PREDICTED, SIGNIFICANCE, TRIVIAL, decoding_text, filled_rows, replaced_metrics

_WHILE_TRAINING = (
    "eval_dataset.max_batches", "eval_period", "stats_period", "infer_eval_period", "infer_eval_steps",
)  # fmt: skip


def evaluate(
    loaded: LoadedConfig, path: Path, *, split: str | None = None, step: Step = None, task: str | None = None
) -> dict[str, Any]:
    """Measure a checkpoint of a run on its whole validation split; writes samples.json and evaluation.json.

    step: see `parameters_and_vocabulary`. split: another split of the task. task: another task or mixture, with its own
    objective and with the vocabulary that the run was trained with. The results for these go into the folder
    evaluation/[<task>/][<split>/], without samples.

    evaluation.json holds, beside the loss: "unigram", the loss of token frequencies in training; for an encoder-decoder
    "encoder_use", the rise of the loss where inputs are rotated (see `Validation.measure`); for span corruption
    "blanks", the share of blanks that are filled in exactly (see `blanks.score`); for a mixture "tasks", the loss of
    every task. `seqio.Evaluator` computes the metrics of the tasks (`metric_fns`) on scores, and on predictions by the
    experiment's method of decoding. "trivial" holds the same metrics for answers without a model (see
    `RemoteEvaluator.trivial`). What does not fit into evaluation.json goes into the folder evaluation/:
    predictions/<task>.jsonl, blanks.json, attention.json, and metrics.jsonl, a history; pictures and histograms go to
    TensorBoard. Raises UserError, before anything is made or measured, for a run of another experiment or settings.
    """
    experiment = loaded.experiment
    directory = RunDirectory(path)
    directory.read()
    config, folder = experiment.eval_dataset, directory.evaluation
    if task is not None and task != config.mixture_or_task_name:
        config, folder = with_task(config, task), folder / task
    if split is not None and split != config.split:
        config, folder = replace_fields(config, f"SPLIT={split}", split=split), folder / split
    with directory.evaluation_lock():
        return _evaluate(loaded, directory, config, folder, step, task)


def _evaluate(
    loaded: LoadedConfig, directory: RunDirectory, config: DatasetConfig, folder: Path, step: Step, task: str | None
) -> dict[str, Any]:
    """`evaluate` on the dataset `config`, with results in `folder`."""
    experiment = loaded.experiment
    is_default = folder == directory.evaluation  # the experiment's own task and split
    source = check_and_prepare(loaded, directory, config)
    if config.max_batches != directory.read()["identity"].get("settings", {}).get("eval_dataset.max_batches"):
        print(f"EVAL_STEPS={config.max_batches} is for validation in training: all of {config.split} is measured here")
    config = data_config(dataclasses.replace(config, max_batches=None), experiment.random_seed)
    built = assembly.assemble(experiment)
    params, vocabulary, checkpoint_step = parameters_and_vocabulary(directory, experiment, built, step)
    with DataService(log=directory.evaluation_log) as service:
        description = service.describe(config)
        check_same_vocabulary(description.vocabulary, vocabulary, directory)
        stream = service.open(config)
        summary, by_task = _losses(service, stream, task_configs(config, description), built, params, vocabulary)
        has_training = "train" in description.splits
        sample_rows, held_out, training = dict[str, np.ndarray](), list[str](), list[str]()
        if predicts(experiment):
            sample_rows = samples.spread_rows(stream)
            if has_training:
                held_out, training = samples.windows(service, stream, sample_rows, experiment, vocabulary)
        stream.close()
        unigram = unigram_of_training(service, config, vocabulary) if is_default and has_training else None
        measured, trivial = list[TaskMetrics](), dict[str, Trivial]()
        if description.has_metrics:
            evaluator, outputs = service.evaluator(config), model_outputs(built, vocabulary)
            measured = InferEval(lambda: evaluator, outputs).measure(params, checkpoint_step, folder / "predictions")
            (folder / SIGNIFICANCE).unlink(missing_ok=True)  # it was of other predictions
            trivial = evaluator.trivial()
    sample_records, attention_maps = list[Any](), list[Any]()
    if is_default and predicts(experiment):
        pairs = inputs_and_targets(sample_rows, stream.spec)
        sample_records, attention_maps = samples.predict(directory, built, params, vocabulary, pairs, checkpoint_step)
    filled, examples = blanks.measure(experiment, params, vocabulary, held_out, training) if held_out else ({}, [])
    mean_of = checkpoints_in_mean(step)
    result = {
        "step": checkpoint_step,
        **({"mean_of_checkpoints": mean_of} if mean_of else {}),
        "task": config.mixture_or_task_name,
        "split": config.split,
        "data": source.data,
        "git": environment.git_state(),
        **summary,
        **_optional_parts(checkpoint_step, filled, unigram, by_task, measured, trivial),
    }
    _write_history(directory, folder, config.split, checkpoint_step, mean_of, summary, by_task, measured)
    file = directory.evaluation_json if is_default else folder / directory.evaluation_json.name
    replaced = replaced_metrics(read_json(file), result) if file.exists() else []
    write_json(folder / blanks.FILE, examples)
    if is_default:
        # evaluation.json names the step: it is written last, so that the samples beside it are of that step
        write_json(directory.attention_json, attention_maps)
        write_json(directory.samples_json, sample_records)
    write_json(file, to_json(result))
    subject = f"{loaded.name} after step {checkpoint_step:,} on {config.split}{f' of {task}' if task else ''}"
    _print_result(subject, result, measured, replaced)
    print(f"written to {shown(file)}", flush=True)
    return result


def _losses(
    service: DataService,
    stream: Stream,
    tasks: Sequence[DatasetConfig],
    built: Assembly,
    params: Any,
    vocabulary: Vocabulary,
) -> tuple[Summary, Mapping[str, Summary]]:
    """The loss of the whole split, from its stream, and the loss of each of the tasks of a mixture."""
    eval_step, token_bytes = built.compile_eval_step(), built.token_bytes(vocabulary)

    def measure(params: Any, batch: Any) -> Any:
        return eval_step(params, batch, token_bytes)

    def task_streams() -> dict[str, Stream]:
        return {task.mixture_or_task_name: service.open(task) for task in tasks}

    with Progress("loss", None, "batches") as progress:
        summary = Validation(stream, measure, built.on_devices).measure(params, progress)
        return summary, TaskValidation(task_streams, measure, built.on_devices).measure(params, progress)


def _print_result(
    subject: str, result: Mapping[str, Any], measured: Sequence[TaskMetrics], replaced: Sequence[str]
) -> None:
    print(f"{subject}: {metrics.format_line(result)}, {result['target_tokens']:,} target tokens")
    if (unigram := result.get("unigram")) and unigram["loss"] is not None:
        loss, accuracy = unigram["loss"], unigram["accuracy"]
        print(f"  the frequencies of tokens alone: loss {loss:.3f} nats per target token, accuracy {accuracy:.3f}")
    tables = [*_losses_table(result.get("tasks", {})), *_metrics_table(measured, result.get("trivial", {}))]
    for line in [*aligned(*filled_rows(result), numbers_from=1), *tables, *replaced]:
        print(f"  {line}")


def _optional_parts(
    step: int,
    filled: Mapping[str, Any],
    unigram: Mapping[str, Any] | None,
    by_task: Mapping[str, Summary],
    measured: Sequence[TaskMetrics],
    trivial: Mapping[str, Trivial],
) -> dict[str, Any]:
    """The parts of evaluation.json that not every evaluation has."""
    parts: dict[str, Any] = {}
    if filled:
        parts["blanks"] = filled
    if unigram is not None:
        parts["unigram"] = {name: unigram[name] for name in ("loss", "accuracy", "nats_per_byte")}
    if by_task:
        parts["tasks"] = by_task
    if measured:
        records = {one.task: one.to_record(step) for one in measured}
        parts["predicted"] = {task: {name: one[name] for name in PREDICTED} for task, one in records.items()}
        parts["metrics"] = {task: one["metrics"] for task, one in records.items()}
    if trivial:
        parts["trivial"] = trivial
    return parts


def with_task(config: DatasetConfig, task: str) -> DatasetConfig:
    """The dataset with another task in it, with that task's own objective and metrics."""
    return replace_fields(config, f"TASK={task}", mixture_or_task_name=task, objective=None, metrics=())


def _write_history(
    directory: RunDirectory,
    folder: Path,
    split: str,
    step: int,
    mean_of: int,
    summary: Summary,
    by_task: Mapping[str, Summary],
    measured: Sequence[TaskMetrics],
) -> None:
    """Write the records of this evaluation, as a run would, behind those of others; and TensorBoard's records.

    mean_of: the number of checkpoints whose mean was measured; 0 for the checkpoint of the step itself.
    """
    split = "validation" if folder == directory.evaluation else split
    mean = {"mean_of_checkpoints": mean_of} if mean_of else {}
    of_split = {"step": step, "split": split, **mean}
    records = [
        {**of_split, **summary},
        *({**of_split, "task": task, **values} for task, values in by_task.items()),
        *({**one.to_record(step), **mean} for one in measured),
    ]
    history = folder / "metrics.jsonl"
    earlier = [
        one for one in read_jsonl(history) if (one["step"], one.get("mean_of_checkpoints", 0)) != (step, mean_of)
    ]
    with write_atomically(history) as file:
        file.writelines(map(record_line, [*earlier, *records]))
    events = directory.tensorboard / folder.relative_to(directory.path)
    # where later steps are recorded already, TensorBoard is to hide none of them
    after_step = None if any(record["step"] > step for record in earlier) else step - 1
    with TensorBoardWriter(events, after_step) as tensorboard:
        tensorboard.values(step, summary, prefix=split)
        for task, values in by_task.items():
            tensorboard.values(step, values, prefix=f"{split}/{task}")
        for one in measured:
            tensorboard.values(step, one.metrics, prefix=f"{SPLIT}/{one.task}")


def _losses_table(by_task: Mapping[str, Summary]) -> list[str]:
    names = ("loss", "nats_per_byte", "bits_per_byte", "accuracy", "target_tokens")
    rows = [[task, *(metric_values.format_value(values[name]) for name in names)] for task, values in by_task.items()]
    return aligned(["task", *(name.replace("_", " ") for name in names)], rows, numbers_from=1)


def _metrics_table(measured: Sequence[TaskMetrics], trivial: Mapping[str, Trivial]) -> list[str]:
    baselines = [baseline for baseline in TRIVIAL if any(baseline in by_baseline for by_baseline in trivial.values())]
    rows = [
        [one.task, f"{one.examples:,}", name, metric_values.format_value(value)]
        + [metric_values.format_value(trivial.get(one.task, {}).get(baseline, {}).get(name)) for baseline in baselines]
        for one in measured
        for name, value in one.metrics.items()
    ]
    table = aligned(["task", "examples", "metric", "value", *(TRIVIAL[baseline] for baseline in baselines)], rows)
    return table + [f"{one.task} was predicted by {decoding_text(one.decoding)}" for one in measured if one.decoding]


def check_and_prepare(loaded: LoadedConfig, directory: RunDirectory, config: DatasetConfig) -> prepare.DataIdentity:
    """The identity of the data that the evaluation reads; makes what is missing. First checks that the run is of this
    experiment, or raises UserError."""
    experiment, is_imported = loaded.experiment, directory.imported() is not None
    if is_imported:  # has no task: any task with its vocabulary can be measured
        check_same_model(directory, experiment)
    else:
        directory.check(loaded.name, _evaluation_identity(experiment, None, directory))
    # the ids of a task of the table are known before anything is made; others are known to the data process
    row, recorded = data_state.row_of(config.mixture_or_task_name), directory.read()["identity"].get("vocabulary")
    if row is not None and recorded is not None:
        check_same_vocabulary(row.vocabulary, recorded, directory)
    source = prepare.prepare(config, experiment.needs)
    if not is_imported and config.mixture_or_task_name == experiment.train_dataset.mixture_or_task_name:
        directory.check(loaded.name, _evaluation_identity(experiment, source, directory))
    return source


def _evaluation_identity(
    experiment: Experiment, source: prepare.DataIdentity | None, directory: RunDirectory
) -> dict[str, Any]:
    """`run_identity` with the recorded values of the settings that only say when training measures, and on how much."""
    identity, recorded = run_identity(experiment, source), directory.read()["identity"].get("settings", {})
    settings = {name: value for name, value in identity["settings"].items() if name not in _WHILE_TRAINING}
    recorded_settings = {name: recorded[name] for name in _WHILE_TRAINING if name in recorded}
    return {**identity, "settings": {**settings, **recorded_settings}}


def is_up_to_date(directory: RunDirectory, step: int, mean_of: int | None = None) -> bool:
    """True if evaluation.json and samples.json are of the checkpoint of `step`, or of the mean of the last
    `mean_of` checkpoints up to it."""
    if not directory.evaluation_json.exists() or not directory.samples_json.exists():
        return False
    evaluation = read_json(directory.evaluation_json)
    return (evaluation.get("step"), evaluation.get("mean_of_checkpoints")) == (step, mean_of)
