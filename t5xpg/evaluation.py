"""What a run has learned: the loss of a whole held-out split, the task's own metrics, sample predictions."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg import assembly, paths, preparation, training
from t5xpg.config import LoadedConfig
from t5xpg.data.client import DataService, Stream
from t5xpg.data.spec import DatasetConfig
from t5xpg.errors import UserError
from t5xpg.files import read_json, write_json
from t5xpg.filling import fill
from t5xpg.inference import Predictor
from t5xpg.paths import shown
from t5xpg.rundir import RunDirectory, differing
from t5xpg.training import data_config
from t5xpg.validation import Validation
from t5xpg.vocabularies import Vocabulary
from t5xpg.writers import to_json

NUM_SAMPLES = 8


def evaluate(loaded: LoadedConfig, path: Path) -> dict[str, Any]:
    """Measure a run's last checkpoint on its whole validation split; writes samples.json and evaluation.json.

    Raises UserError, before anything is exported or measured, where the run is not one of this experiment with these
    settings; what was measured would stand for another run.

    The metrics of the task (`metric_fns`), where it has any, are computed by `seqio.Evaluator` on greedy predictions.
    """
    experiment = loaded.experiment
    directory = RunDirectory(path)
    directory.read()
    source = _prepared(loaded, directory)
    config = data_config(experiment.eval_dataset, experiment.random_seed)
    config = dataclasses.replace(config, max_batches=None)
    built = assembly.assemble(experiment)
    params, vocabulary, step = training.parameters_and_vocabulary(directory, experiment, built)
    with DataService(
        data_dir=paths.data_directory(), cache_dir=paths.cache_directory(), log=directory.evaluation_log
    ) as service:
        description = service.describe(config)
        _check_vocabulary(description.vocabulary, vocabulary, directory)
        stream = service.open(config)
        eval_step, token_bytes = built.compile_eval_step(), built.token_bytes(vocabulary)
        validation = Validation(stream, lambda params, batch: eval_step(params, batch, token_bytes), built.on_devices)
        summary = validation.measure(params)
        stream.rewind()
        rows = _spread_rows(stream, int(summary["batches"]))
    predictor = Predictor(experiment, params, vocabulary)
    samples = _samples(predictor, rows)
    result: dict[str, Any] = {
        "step": step,
        "task": config.mixture_or_task_name,
        "split": config.split,
        "data": source.data,
        **summary,
    }
    if description.has_metrics:
        result["metrics"] = task_metrics(config, predictor, step)
    # evaluation.json names the step: it comes last, so that the samples beside it are of the same
    write_json(directory.samples_json, samples)
    write_json(directory.evaluation_json, to_json(result))
    print(
        f"{loaded.name} after step {step:,} on {config.split}: loss {summary['loss']:.3f} nats per target token, "
        f"{summary['nats_per_byte']:.3f} nats and {summary['bits_per_byte']:.3f} bits per target byte, "
        f"accuracy {summary['accuracy']:.3f}, {summary['target_tokens']:,} target tokens"
    )
    for task, values in result.get("metrics", {}).items():
        print(f"  {task}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
    print(f"written to {shown(directory.evaluation_json)}", flush=True)
    return result


def _prepared(loaded: LoadedConfig, directory: RunDirectory) -> preparation.Source:
    """What the evaluation reads, made where it is missing, once the run is known to be this experiment's."""
    experiment = loaded.experiment
    identity = training.run_identity(experiment, preparation.Source({}))
    known = {name: value for name, value in identity.items() if name not in ("data", "cache")}
    directory.check(loaded.name, known)
    source = preparation.prepare(experiment.eval_dataset)
    if experiment.eval_dataset.mixture_or_task_name == experiment.train_dataset.mixture_or_task_name:
        directory.check(loaded.name, training.run_identity(experiment, source))
    return source


def _check_vocabulary(task: Vocabulary, trained: Vocabulary, directory: RunDirectory) -> None:
    """Raise UserError if the task's ids mean something else than those that the run was trained with."""
    ours, theirs = task.to_json(), trained.to_json()
    ours.pop("model_file", None)  # where it lies; its digest is compared
    theirs.pop("model_file", None)
    differences = differing(theirs, ours)
    if differences:
        listed = ", ".join(f"{name} {old} in the run, {new} now" for name, (old, new) in differences.items())
        raise UserError(f"{directory.path} was trained with another vocabulary than the task has: {listed}.")


def is_up_to_date(directory: RunDirectory, step: int) -> bool:
    """Whether evaluation.json and samples.json tell of the checkpoint of `step`."""
    if not directory.evaluation_json.exists() or not directory.samples_json.exists():
        return False
    return bool(read_json(directory.evaluation_json).get("step") == step)


def task_metrics(config: DatasetConfig, predictor: Predictor, step: int) -> dict[str, dict[str, float]]:
    """The scalar metrics of every task of a mixture, by `seqio.Evaluator`: {task: {metric: value}}.

    Of the model's outputs there are greedy predictions: where a task has a metric of other outputs (scores), a line
    says so and there are none.
    """
    # TensorFlow comes with seqio; nothing else of the program needs it in this process. It should print errors alone.
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", TF_ENABLE_ONEDNN_OPTS="0")
    import seqio
    import tensorflow as tf
    from absl import logging

    tf.config.set_visible_devices([], "GPU")
    logging.set_verbosity(logging.ERROR)  # seqio warns that nobody gets the metrics but us
    import t5xpg.tasks  # noqa: F401  # the table, and the cache folder
    from t5xpg.data import providers

    providers.import_modules(config.module_import)
    provider = providers.find_provider(config)
    needed = {metric.model_output_type for task in providers.tasks_of(provider) for metric in task.metric_objs}
    if needed - {seqio.metrics.ModelOutputType.PREDICTION}:
        print(f"{provider.name} has metrics of scores; only metrics of predictions are computed: none are shown")
        return {}
    # The evaluator takes names alone. With the experiment's objective the task is another than that of its name.
    registry = seqio.TaskRegistry if isinstance(provider, seqio.Task) else seqio.MixtureRegistry
    registry.remove(provider.name)
    registry.add_provider(provider.name, provider)
    evaluator = seqio.Evaluator(
        mixture_or_task_name=provider.name,
        feature_converter=seqio.EncDecFeatureConverter(pack=False),
        eval_split=config.split,
        use_cached=config.use_cached,
        seed=config.seed,
        sequence_length=dict(config.task_feature_lengths),
        async_compute_metrics=False,
    )

    def predict(dataset: Any) -> list[tuple[int, list[int]]]:
        found: list[tuple[int, list[int]]] = []
        for rows in _parts(dataset.as_numpy_iterator(), predictor.batch_size):
            tokens = np.stack([features["encoder_input_tokens"] for _, features in rows])
            # the last part is filled up: its shape is compiled already, and divides over the devices
            tokens = np.pad(tokens, ((0, predictor.batch_size - len(rows)), (0, 0)))
            predictions = predictor.tokens(tokens)
            found += [(int(index), row.tolist()) for (index, _), row in zip(rows, predictions, strict=False)]
        return found

    metrics, _ = evaluator.evaluate(compute_metrics=True, step=step, predict_fn=predict)
    return {task: _scalars(values) for task, values in metrics.result().items()}


def _scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Those metrics that are one number; others are texts, pictures, histograms, arrays."""
    numbers = {name: getattr(value, "value", value) for name, value in values.items()}
    return {
        name: float(number)
        for name, number in numbers.items()
        if isinstance(number, int | float | np.number) or getattr(number, "shape", None) == ()
    }


def _parts(rows: Iterable[Any], size: int) -> Iterable[list[Any]]:
    part: list[Any] = []
    for row in rows:
        part.append(row)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


def _spread_rows(stream: Stream, batches: int) -> dict[str, np.ndarray]:
    """Rows from all over a split, so that they are not of one document: the first of every so many batches."""
    period = max(1, batches // NUM_SAMPLES)
    per_batch = -(-NUM_SAMPLES // batches)
    found = [
        {name: array[:per_batch] for name, array in batch.items()}
        for number, batch in enumerate(stream)
        if number % period == 0
    ]
    rows = {name: np.concatenate([part[name] for part in found])[:NUM_SAMPLES] for name in found[0]}
    filled = (rows["encoder_input_tokens"] != 0).any(axis=1)
    return {name: array[filled] for name, array in rows.items()}


def _samples(predictor: Predictor, rows: dict[str, np.ndarray]) -> list[dict[str, str]]:
    """Rows as texts, with what the model says."""
    decode = predictor.vocabulary.decode
    samples = []
    for tokens, target, predicted in zip(
        rows["encoder_input_tokens"],
        rows["decoder_target_tokens"],
        predictor.tokens(rows["encoder_input_tokens"]),
        strict=True,
    ):
        text, prediction = decode(tokens), decode(predicted)
        samples.append(
            {"input": text, "target": decode(target), "prediction": prediction, "filled": fill(text, prediction)}
        )
    return samples
