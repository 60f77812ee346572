"""`make eval`: a checkpoint's loss on a whole held-out split, the metrics of its tasks, and sample predictions."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base import environment, metric_values
from t5xpg.base.errors import UserError
from t5xpg.base.files import write_json
from t5xpg.base.markdown import aligned
from t5xpg.base.paths import shown
from t5xpg.base.progress import Progress
from t5xpg.data.batch import inputs_and_targets
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.data.stream.remote_evaluator import Trivial
from t5xpg.evaluate import blanks, samples
from t5xpg.evaluate.baselines import unigram_of_training
from t5xpg.evaluate.infer_eval import SPLIT, TaskMetrics
from t5xpg.evaluate.infer_sources import in_source_order, replace_fields
from t5xpg.evaluate.measurements import measurements
from t5xpg.evaluate.predictor import decoding_words, predicts
from t5xpg.evaluate.trained_model import (
    Step,
    check_same_model,
    check_same_vocabulary,
    checkpoint_facts,
    parameters_and_vocabulary,
)
from t5xpg.experiment import assembly
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.identity import data_config
from t5xpg.experiment.known_tasks import known_task
from t5xpg.experiment.recipe import DataIdentity, Recipe
from t5xpg.run import metrics
from t5xpg.run.directory import RunDirectory, differing, short
from t5xpg.run.evaluations import PREDICTED, PREDICTIONS, RECORD, Evaluation, checkpoint_text, find, folder_name
from t5xpg.run.numbers import filled_rows, loss_rows, metric_rows
from t5xpg.run.records import TensorBoardWriter, to_json


def evaluate(
    loaded: LoadedConfig, path: Path, *, split: str | None = None, step: Step = None, task: str | None = None
) -> dict[str, Any]:
    """Measure a checkpoint of a run on a whole held-out split; the record is written into the run, and returned.

    loaded: the run's own configuration (`load_run`). step: see `parameters_and_vocabulary`. split: another split than
    that of the run's validation. task: another task or mixture, with its own objective and with the vocabulary that the
    run was trained with. The record lies beside those of other checkpoints, tasks, splits, decodings and lengths, in a
    folder that is named after them (`run.evaluations`).

    The record holds, beside the loss: "unigram", the loss of token frequencies in training; for an encoder-decoder
    "encoder_use", the rise of the loss where inputs are rotated (see `Validation.measure`); for span corruption
    "blanks", the share of blanks that are filled in exactly (see `blanks.score`); for a mixture "tasks", the loss of
    every task. `seqio.Evaluator` computes the metrics of the tasks (`metric_fns`) on scores, and on predictions by the
    configuration's method of decoding. "trivial" holds the same metrics for answers without a model (see
    `RemoteEvaluator.trivial`). Pictures and histograms go to TensorBoard. Raises UserError, before anything is made or
    measured, for a model, a vocabulary or a text that is not the run's.
    """
    directory = RunDirectory(path)
    directory.read()
    own = loaded.experiment.eval_dataset
    config = own if task in (None, own.mixture_or_task_name) else with_task(own, str(task))
    if split is not None:
        config = replace_fields(config, f"SPLIT={split}", split=split)
    with directory.evaluation_lock():
        return _evaluate(loaded, directory, config, step)


def _evaluate(loaded: LoadedConfig, directory: RunDirectory, config: DatasetConfig, step: Step) -> dict[str, Any]:
    """`evaluate` on the dataset `config`."""
    experiment = loaded.experiment
    own_task, own_split = _own_validation(directory)
    is_own = config.mixture_or_task_name == (own_task or config.mixture_or_task_name) and config.split == own_split
    source = check_and_prepare(loaded, directory, config)
    if config.max_batches is not None:
        print(f"EVAL_STEPS={config.max_batches} is for validation in training: all of {config.split} is measured here")
    config = data_config(dataclasses.replace(config, max_batches=None), experiment.random_seed)
    built = assembly.assemble(experiment)
    params, vocabulary, checkpoint_step = parameters_and_vocabulary(directory, experiment, built, step)
    facts = _facts(loaded, directory, config, checkpoint_facts(directory, checkpoint_step, step))
    target = Evaluation(directory.evaluations / folder_name(facts["parts"]), facts)
    with DataService(log=directory.evaluation_log) as service:
        description = service.describe(config)
        check_same_vocabulary(description.vocabulary, vocabulary, directory)
        stream = service.open(config)
        eval_step, token_bytes = built.compile_eval_step(), built.token_bytes(vocabulary)
        measuring = measurements(
            built, service, config, vocabulary, lambda: stream,
            lambda params, batch: eval_step(params, batch, token_bytes), in_source_order(config),
        )  # fmt: skip
        with Progress("loss", None, "batches") as progress:
            summary, by_task = measuring.loss(params, progress), measuring.loss_by_task(params, progress)
        has_training = "train" in description.splits
        sample_rows, held_out, training = dict[str, np.ndarray](), list[str](), list[str]()
        if predicts(experiment):
            sample_rows = samples.spread_rows(stream)
            if has_training:
                held_out, training = samples.windows(service, stream, sample_rows, experiment, vocabulary)
        stream.close()
        unigram = unigram_of_training(service, config, vocabulary) if is_own and has_training else None
        measured: Sequence[TaskMetrics] = ()
        trivial: Mapping[str, Trivial] = {}
        if description.has_metrics:
            target.significance_json.unlink(missing_ok=True)  # it was of other predictions
            measured = measuring.metrics(params, checkpoint_step, target.folder / PREDICTIONS)
            trivial = measuring.trivial()
    filled, examples = blanks.measure(experiment, params, vocabulary, held_out, training) if held_out else ({}, [])
    records = {one.task: one.to_record(checkpoint_step) for one in measured}
    optional: dict[str, Any] = {
        "blanks": filled,
        "unigram": unigram and {name: unigram[name] for name in ("loss", "accuracy", "nats_per_byte")},
        "tasks": by_task,
        "predicted": {task: {name: one[name] for name in PREDICTED} for task, one in records.items()},
        "metrics": {task: one["metrics"] for task, one in records.items()},
        "trivial": trivial,
    }
    record = {
        **facts,
        "time": time.time(),
        "data": source.data,
        "cache": source.cache,
        "git": environment.git_state(read=loaded.files),
        **summary,
        **{name: part for name, part in optional.items() if part},
    }
    write_json(target.folder / blanks.FILE, examples)
    if is_own and predicts(experiment):
        pairs = inputs_and_targets(sample_rows, stream.spec)
        sample_records, attention = samples.predict(directory, built, params, vocabulary, pairs, checkpoint_step)
        write_json(target.attention_json, attention)
        write_json(target.samples_json, sample_records)
    written: dict[str, Any] = to_json(record)
    write_json(target.folder / RECORD, written)  # last: what lies beside it is whole then
    scalars = {config.split: summary, **{f"{config.split}/{task}": losses for task, losses in by_task.items()}}
    with TensorBoardWriter(directory.tensorboard / target.folder.relative_to(directory.path)) as tensorboard:
        for prefix, values in (scalars | {f"{SPLIT}/{one.task}": one.metrics for one in measured}).items():
            tensorboard.values(checkpoint_step, values, prefix)
    _print_result(f"{loaded.name}, {', '.join(facts['parts'].values())}", record)
    print(f"written to {shown(target.folder / RECORD)}", flush=True)
    return written


def _facts(
    loaded: LoadedConfig, directory: RunDirectory, config: DatasetConfig, checkpoint: Mapping[str, Any]
) -> dict[str, Any]:
    """The part of a record that says what is measured, and how: see `run.evaluations`. checkpoint: its facts."""
    experiment = loaded.experiment
    lengths = dict(config.task_feature_lengths)
    trained = directory.read()["identity"].get("settings", {}).get("eval_dataset.task_feature_lengths", lengths)
    parts = {"checkpoint": checkpoint_text(checkpoint), "split": config.split}
    if config.mixture_or_task_name != _own_validation(directory)[0]:
        parts["task"] = config.mixture_or_task_name
    if predicts(experiment):
        parts["decoding"] = decoding_words(experiment)
    if lengths != trained:
        parts["lengths"] = ", ".join(f"{name} {length}" for name, length in lengths.items())
    return {
        "experiment": loaded.name,
        "parts": parts,
        **checkpoint,
        "task": config.mixture_or_task_name,
        "split": config.split,
        "lengths": lengths,
        **({"decoding": experiment.decoding.settings()} if predicts(experiment) else {}),
    }


def _own_validation(directory: RunDirectory) -> tuple[str | None, str]:
    """The task and the split of a run's validation, as it was made; None for the task of an imported run."""
    settings = directory.read()["identity"].get("settings", {})
    return settings.get("eval_dataset.mixture_or_task_name"), settings.get("eval_dataset.split", "validation")


def _print_result(subject: str, record: Mapping[str, Any]) -> None:
    print(f"{subject}: {metrics.format_line(record)}, {record['target_tokens']:,} target tokens")
    if (unigram := record.get("unigram")) and unigram["loss"] is not None:
        loss, accuracy = unigram["loss"], unigram["accuracy"]
        print(f"  the frequencies of tokens: loss {loss:.3f} nats per target token, token accuracy {accuracy:.3f}")
    losses = {task: {"step": record["step"], **values} for task, values in record.get("tasks", {}).items()}
    header, rows = metric_rows([record])
    lines = aligned(*filled_rows(record), numbers_from=1) + aligned(*loss_rows("task", losses), numbers_from=1)
    for line in lines + aligned(header, [[metric_values.format_value(value) for value in row] for row in rows]):
        print(f"  {line}")


def with_task(config: DatasetConfig, task: str) -> DatasetConfig:
    """The dataset with another task in it, with that task's own objective and metrics."""
    return replace_fields(config, f"TASK={task}", mixture_or_task_name=task, objective=None, metrics=())


def check_and_prepare(loaded: LoadedConfig, directory: RunDirectory, config: DatasetConfig) -> DataIdentity:
    """The identity of the data that the evaluation reads; makes what is missing. Raises UserError, before that where it
    can, if the model, the vocabulary or the text of the run's own task are not the run's."""
    experiment, identity = loaded.experiment, directory.read()["identity"]
    check_same_model(directory, experiment)
    # the ids of a task of the table are known before anything is made; others are known to the data process
    row, recorded = known_task(config.mixture_or_task_name), identity.get("vocabulary")
    if row is not None and recorded is not None:
        check_same_vocabulary(row.vocabulary, recorded, directory)
    source = Recipe.of(config, experiment.needs).make()
    is_trained_on = config.mixture_or_task_name == experiment.train_dataset.mixture_or_task_name
    if (
        is_trained_on
        and "data" in identity
        and (changed := differing({"data": identity["data"]}, to_json({"data": source.data})))
    ):
        listed = "; ".join(f"{name} {short(old)} then, {short(now)} now" for name, (old, now) in changed.items())
        raise UserError(
            f"The text of {config.mixture_or_task_name} is not that of {shown(directory.path)}: {listed}. Make the "
            "run's text again (make data), or give the new one another name and measure it as TASK=…"
        )
    return source


def is_up_to_date(directory: RunDirectory, step: int, mean_of: int | None = None) -> Evaluation | None:
    """The evaluation, with samples, of the checkpoint of `step` or of the mean of the last `mean_of` checkpoints up to
    it, on the run's own validation split; None if there is none."""
    found = find(directory, step=step, mean_of_checkpoints=mean_of)
    return found if found and found.samples_json.exists() else None
