"""What a run has learned: the loss of a whole held-out split, the metrics of its tasks, sample predictions."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base import environment, metric_values
from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, write_atomically, write_json
from t5xpg.base.markdown import aligned
from t5xpg.base.paths import shown
from t5xpg.base.progress import Progress
from t5xpg.data.batch import ENC_DEC, Batch, inputs_and_targets
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService, Stream
from t5xpg.data.stream.remote_evaluator import Trivial
from t5xpg.data.vocab.sentinels import blanks_of, fill
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate import attention, blanks
from t5xpg.evaluate.baselines import training_sample, unigram_of_training
from t5xpg.evaluate.infer_sources import changed
from t5xpg.evaluate.predicting import SPLIT, InferEval, TaskMetrics, model_outputs, predicts
from t5xpg.evaluate.predictor import Predictor
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
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import TensorBoardWriter, line_of, read_jsonl, to_json
from t5xpg.run.results import PREDICTED, SIGNIFICANCE, TRIVIAL, filled_rows, replaced_metrics, settings_text

NUM_SAMPLES = 8
NUM_EARLIER = 3  # checkpoints whose predictions stand beside the last one's
_WHILE_TRAINING = (
    "eval_dataset.max_batches", "eval_period", "stats_period", "infer_eval_period", "infer_eval_steps",
)  # fmt: skip


def evaluate(
    loaded: LoadedConfig, path: Path, *, split: str | None = None, step: Step = None, task: str | None = None
) -> dict[str, Any]:
    """Measure a checkpoint of a run on its whole validation split; writes samples.json and evaluation.json.

    step: see `parameters_and_vocabulary`. split: another split of the task. task: another task or mixture, with its own
    objective and with the ids that the run was trained on. The results for these go into the folder
    evaluation/[<task>/][<split>/], without samples.

    evaluation.json holds, beside the loss: "unigram", the loss of token frequencies in training; for an encoder-decoder
    "encoder_use", the rise of the loss where inputs are exchanged (see `Validation.measure`); for span corruption
    "blanks", how many blanks are filled in exactly (see `blanks.scored`); for a mixture "tasks", the loss of every
    task. `seqio.Evaluator` computes the metrics of the tasks (`metric_fns`) on scores, and on predictions by the
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
        config, folder = of_task(config, task), folder / task
    if split is not None and split != config.split:
        config, folder = changed(config, f"SPLIT={split}", split=split), folder / split
    with directory.evaluation_lock():
        return _evaluate(loaded, directory, config, folder, step, task)


def _evaluate(
    loaded: LoadedConfig, directory: RunDirectory, config: DatasetConfig, folder: Path, step: Step, task: str | None
) -> dict[str, Any]:
    """`evaluate` on the dataset `config`, with results in `folder`."""
    experiment = loaded.experiment
    own = folder == directory.evaluation
    source = check_and_prepare(loaded, directory, config)
    if config.max_batches != directory.read()["identity"].get("settings", {}).get("eval_dataset.max_batches"):
        print(f"EVAL_STEPS={config.max_batches} is for validation in training: all of {config.split} is measured here")
    config = data_config(dataclasses.replace(config, max_batches=None), experiment.random_seed)
    built = assembly.assemble(experiment)
    params, vocabulary, at = parameters_and_vocabulary(directory, experiment, built, step)
    with DataService(log=directory.evaluation_log) as service:
        description = service.describe(config)
        check_same_vocabulary(description.vocabulary, vocabulary, directory)
        stream = service.open(config)
        eval_step, token_bytes = built.compile_eval_step(), built.token_bytes(vocabulary)

        def measure(params: Any, batch: Any) -> Any:
            return eval_step(params, batch, token_bytes)

        tasks = task_configs(config, description)
        with Progress("loss", None, "batches") as progress:
            summary = Validation(stream, measure, built.on_devices).measure(params, progress)
            by_task = TaskValidation(
                lambda: {task.mixture_or_task_name: service.open(task) for task in tasks}, measure, built.on_devices
            ).measure(params, progress)
        has_training = "train" in description.splits
        looked_at: Batch = {}
        held_out, training = list[str](), list[str]()
        if predicts(experiment):
            looked_at = _looked_at(stream)
            if has_training:
                held_out, training = _windows(service, stream, looked_at, experiment, vocabulary)
        stream.close()
        unigram = unigram_of_training(service, config, vocabulary) if own and has_training else None
        measured: list[TaskMetrics] = []
        trivial: Mapping[str, Trivial] = {}
        if description.has_metrics:
            evaluator = service.evaluator(config)
            infer_eval = InferEval(lambda: evaluator, model_outputs(built, vocabulary))
            measured = infer_eval.measure(params, at, folder / "predictions")
            (folder / SIGNIFICANCE).unlink(missing_ok=True)  # it was of other predictions
            trivial = evaluator.trivial()
    samples, looked = [], []
    if own and predicts(experiment):
        inputs, targets = (rows[_places(len(rows), NUM_SAMPLES)] for rows in inputs_and_targets(looked_at, stream.spec))
        predictor = Predictor(experiment, params, vocabulary)
        predictions = predictor.tokens(inputs)
        samples = _samples(vocabulary, inputs, targets, predictions)
        for earlier, found in _earlier(directory, experiment, built, predictor, inputs, at):
            for sample, tokens in zip(samples, found, strict=True):
                sample.setdefault("earlier", {})[str(earlier)] = vocabulary.decode(tokens)
        looked = attention.of_examples(experiment, params, vocabulary, inputs, predictions)
    filled, examples = blanks.measure(experiment, params, vocabulary, held_out, training) if held_out else ({}, [])
    mean_of = checkpoints_in_mean(step)
    result: dict[str, Any] = {
        "step": at,
        **({"mean_of_checkpoints": mean_of} if mean_of else {}),
        "task": config.mixture_or_task_name,
        "split": config.split,
        "data": source.data,
        "git": environment.git_state(),
        **summary,
    }
    if filled:
        result["blanks"] = filled
    if unigram is not None:
        result["unigram"] = {name: unigram[name] for name in ("loss", "accuracy", "nats_per_byte")}
    if by_task:
        result["tasks"] = by_task
    if measured:
        records = {one.task: one.to_record(at) for one in measured}
        result["predicted"] = {task: {name: one[name] for name in PREDICTED} for task, one in records.items()}
        result["metrics"] = {task: one["metrics"] for task, one in records.items()}
    if trivial:
        result["trivial"] = trivial
    _write_history(directory, folder, "validation" if own else config.split, at, mean_of, summary, by_task, measured)
    written = directory.evaluation_json if own else folder / directory.evaluation_json.name
    replaced = replaced_metrics(read_json(written), result) if written.exists() else []
    write_json(folder / blanks.FILE, examples)
    if own:
        # evaluation.json names the step: it is written last, so that the samples beside it are of that step
        write_json(directory.attention_json, looked)
        write_json(directory.samples_json, samples)
    write_json(written, to_json(result))
    print(
        f"{loaded.name} after step {at:,} on {config.split}{f' of {task}' if task else ''}: "
        f"{metrics.format_line(summary)}, {summary['target_tokens']:,} target tokens"
    )
    if unigram is not None and unigram["target_tokens"]:
        print(
            f"  the frequencies of tokens alone: loss {unigram['loss']:.3f} nats per target token, accuracy "
            f"{unigram['accuracy']:.3f}"
        )
    for line in [
        *aligned(*filled_rows(result), numbers_from=1),
        *_losses_table(by_task),
        *_metrics_table(measured, trivial),
        *replaced,
    ]:
        print(f"  {line}")
    print(f"written to {shown(written)}", flush=True)
    return result


def of_task(config: DatasetConfig, task: str) -> DatasetConfig:
    """The dataset with another task in it, with that task's own objective and metrics."""
    return changed(config, f"TASK={task}", mixture_or_task_name=task, objective=None, metrics=())


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

    mean_of: of how many checkpoints the mean was measured; 0 for that of the step itself.
    """
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
        file.writelines(map(line_of, [*earlier, *records]))
    events = directory.tensorboard / folder.relative_to(directory.path)
    # a step before one that is there already hides nothing
    after = None if any(record["step"] > step for record in earlier) else step - 1
    with TensorBoardWriter(events, after) as tensorboard:
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
    ways = [way for way in TRIVIAL if any(way in found for found in trivial.values())]
    rows = [
        [one.task, f"{one.examples:,}", name, metric_values.format_value(value)]
        + [metric_values.format_value(trivial.get(one.task, {}).get(way, {}).get(name)) for way in ways]
        for one in measured
        for name, value in one.metrics.items()
    ]
    table = aligned(["task", "examples", "metric", "value", *(TRIVIAL[way] for way in ways)], rows)
    return table + [f"{one.task} was predicted by {settings_text(one.decoding)}" for one in measured if one.decoding]


def check_and_prepare(loaded: LoadedConfig, directory: RunDirectory, config: DatasetConfig) -> prepare.DataIdentity:
    """The identity of what the evaluation reads, made where missing. First checks that the run is this experiment's."""
    experiment, is_imported = loaded.experiment, directory.imported() is not None
    if is_imported:  # it has no task: any task with its vocabulary can be measured
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
    """`run_identity`, with the run's own values of settings that only say when and on how much training measures it."""
    identity, recorded = run_identity(experiment, source), directory.read()["identity"].get("settings", {})
    settings = {name: value for name, value in identity["settings"].items() if name not in _WHILE_TRAINING}
    kept = {name: recorded[name] for name in _WHILE_TRAINING if name in recorded}
    return {**identity, "settings": {**settings, **kept}}


def is_up_to_date(directory: RunDirectory, step: int, mean_of: int | None = None) -> bool:
    """Whether evaluation.json and samples.json are about the checkpoint of `step`, or the mean of `mean_of` to it."""
    if not directory.evaluation_json.exists() or not directory.samples_json.exists():
        return False
    found = read_json(directory.evaluation_json)
    return (found.get("step"), found.get("mean_of_checkpoints")) == (step, mean_of)


def _looked_at(stream: Stream, count: int = blanks.NUM_WINDOWS) -> Batch:
    """At most `count` rows with targets, from the first one of a split to its last."""
    targets = stream.spec.layout.targets

    def with_targets() -> Iterator[Batch]:
        stream.rewind()
        for batch in stream:
            filled = (batch[targets] != 0).any(axis=1)
            yield {name: array[filled] for name, array in batch.items()}

    total = sum(len(rows[targets]) for rows in with_targets())
    chosen = np.zeros(total, bool)
    chosen[_places(total, count)] = True
    found, start = [], 0
    for rows in with_targets():
        here = chosen[start : start + len(rows[targets])]
        start += len(here)
        found.append({name: array[here] for name, array in rows.items()})
    return {name: np.concatenate([rows[name] for rows in found]) for name in found[0]}


def _places(total: int, count: int) -> np.ndarray:
    """At most `count` of the places 0 … total - 1, evenly from the first to the last; int64."""
    return np.linspace(0, total - 1, min(count, total)).astype(np.int64)


def _windows(
    service: DataService, stream: Stream, looked_at: Batch, experiment: Experiment, vocabulary: Vocabulary
) -> tuple[list[str], list[str]]:
    """`blanks.windows` of rows of the split and of training; both empty where those of the split give none."""

    def of(rows: Batch) -> list[str]:
        pairs = zip(*inputs_and_targets(rows, stream.spec), strict=True)
        return list(blanks.windows(pairs, vocabulary, experiment.lengths["inputs"]))

    if stream.config.converter != ENC_DEC or not (held_out := of(looked_at)):
        return [], []
    with contextlib.closing(service.open(training_sample(stream.config))) as training:
        counted = [text for batch in training for text in of({name: rows[:16] for name, rows in batch.items()})]
    return held_out, counted


def _earlier(
    directory: RunDirectory, experiment: Experiment, built: Assembly, predictor: Predictor, inputs: np.ndarray, at: int
) -> Iterator[tuple[int, np.ndarray]]:
    """For some checkpoints before `at` that the run has kept: the step, and the predictions, int32 [B, T]."""
    with Checkpointer(directory.checkpoints, experiment.checkpoints, read_only=True) as checkpointer:
        before = [step for step in checkpointer.steps() if step < at]
    for step in before[:: max(1, -(-len(before) // NUM_EARLIER))]:
        with contextlib.suppress(UserError):  # a damaged one
            predictor.parameters, _, _ = parameters_and_vocabulary(directory, experiment, built, step)
            yield step, predictor.tokens(inputs)


def _samples(vocabulary: Vocabulary, *columns: np.ndarray) -> list[dict[str, Any]]:
    """Rows as texts, with what the model says; and with their blanks filled in, where they have some.

    columns: inputs, targets and predictions, int32 [B, …].
    """
    decode, samples = vocabulary.decode, []
    for tokens, target, predicted in zip(*columns, strict=True):
        text, prediction = decode(tokens), decode(predicted)
        sample = {"input": text, "target": decode(target), "prediction": prediction}
        samples.append(sample | ({"filled": fill(text, prediction)} if blanks_of(text) else {}))
    return samples
