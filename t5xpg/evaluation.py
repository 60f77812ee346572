"""What a run has learned: the loss of a whole held-out split, the task's own metrics, sample predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg import assembly, paths, preparation, training
from t5xpg.config import LoadedConfig
from t5xpg.data.client import DataService, Stream
from t5xpg.data.spec import DatasetConfig
from t5xpg.files import read_json, write_json
from t5xpg.filling import fill
from t5xpg.inference import Predictor
from t5xpg.rundir import RunDirectory
from t5xpg.training import data_config, shown
from t5xpg.validation import Validation
from t5xpg.writers import to_json

NUM_SAMPLES = 8


def evaluate(loaded: LoadedConfig, path: Path) -> dict[str, Any]:
    """Measure a run's last checkpoint on its whole validation split; writes evaluation.json and samples.json.

    The metrics of the task (`metric_fns`), where it has any, are computed by `seqio.Evaluator` on greedy predictions.
    """
    experiment = loaded.experiment
    directory = RunDirectory(path)
    directory.read()
    source = preparation.prepare(experiment.eval_dataset)
    config = data_config(experiment.eval_dataset, experiment.random_seed)
    config = dataclasses.replace(config, max_batches=None)
    built = assembly.assemble(experiment)
    params, vocabulary, step = training.parameters_and_vocabulary(directory, experiment, built)
    with DataService(
        data_dir=paths.data_directory(), cache_dir=paths.cache_directory(), log=path / "data.log"
    ) as service:
        description = service.describe(config)
        stream = service.open(config)
        step_function = built.eval_step(vocabulary.token_bytes())
        summary = Validation(stream, step_function, built.on_devices).measure(params)
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
    write_json(directory.evaluation_json, to_json(result))
    write_json(directory.samples_json, samples)
    print(
        f"{loaded.name} after step {step:,} on {config.split}: loss {summary['loss']:.3f} nats per target token, "
        f"{summary['nats_per_byte']:.3f} nats and {summary['bits_per_byte']:.3f} bits per target byte, "
        f"accuracy {summary['accuracy']:.3f}, {summary['target_tokens']:,} target tokens"
    )
    for task, values in result.get("metrics", {}).items():
        print(f"  {task}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
    print(f"written to {shown(directory.evaluation_json)}", flush=True)
    return result


def is_up_to_date(directory: RunDirectory, step: int) -> bool:
    """Whether evaluation.json and samples.json tell of the checkpoint of `step`."""
    if not directory.evaluation_json.exists() or not directory.samples_json.exists():
        return False
    return bool(read_json(directory.evaluation_json).get("step") == step)


def task_metrics(config: DatasetConfig, predictor: Predictor, step: int) -> dict[str, dict[str, float]]:
    """The scalar metrics of every task of a mixture, by `seqio.Evaluator`: {task: {metric: value}}."""
    # TensorFlow comes with seqio; nothing else of the program needs it in this process.
    import seqio

    from t5xpg.data import providers

    providers.import_modules(config.module_import)
    provider = providers.find_provider(config)
    evaluator = seqio.Evaluator(
        mixture_or_task_name=provider,
        feature_converter=seqio.EncDecFeatureConverter(pack=False),
        eval_split=config.split,
        use_cached=config.use_cached,
        seed=config.seed,
        sequence_length=dict(config.task_feature_lengths),
    )

    def predict(dataset: Iterable[Any], model_feature_lengths: Any = None) -> list[tuple[int, list[int]]]:
        found: list[tuple[int, list[int]]] = []
        for rows in _parts(dataset.as_numpy_iterator(), predictor.batch_size):  # type: ignore[attr-defined]
            tokens = np.stack([features["encoder_input_tokens"] for _, features in rows])
            predictions = predictor.tokens(tokens)
            found += [(int(index), row.tolist()) for (index, _), row in zip(rows, predictions, strict=False)]
        return found

    metrics, _ = evaluator.evaluate(compute_metrics=True, step=step, predict_fn=predict)
    results = metrics.result() if hasattr(metrics, "result") else metrics
    return {
        task: {name: float(value) for name, value in values.items() if np.ndim(_scalar(value)) == 0}
        for task, values in (results or {}).items()
    }


def _scalar(value: Any) -> Any:
    return getattr(value, "value", value)


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
