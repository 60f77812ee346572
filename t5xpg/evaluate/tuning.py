"""Beam search tuned on a validation split: a run's predictions with each number of beams and each length penalty."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5xpg.base import metric_values
from t5xpg.base.errors import UserError
from t5xpg.base.files import write_json
from t5xpg.base.page import aligned
from t5xpg.base.paths import shown
from t5xpg.data.batch import MASKED_LM
from t5xpg.data.stream.client import DataService
from t5xpg.evaluate.evaluation import prepared
from t5xpg.evaluate.infer_sources import changed
from t5xpg.evaluate.predicting import InferEval, TaskMetrics, model_outputs
from t5xpg.evaluate.trained_model import Step, check_same_vocabulary, parameters_and_vocabulary
from t5xpg.experiment import assembly
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.identity import data_config
from t5xpg.models.decoding import DecodingConfig
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import to_json

_BEAM = "beam"


def tune(
    loaded: LoadedConfig,
    path: Path,
    *,
    alphas: Sequence[float],
    beams: Sequence[int] | None = None,
    split: str | None = None,
    step: Step = None,
) -> dict[str, Any]:
    """Decode all of a split with each number of `beams` (None: the experiment's, or 4) and each of `alphas`.

    Prints the metrics of each, and what to type for the best: that with the highest first metric of the first task that
    is predicted. Writes it into the run's tuning.json, and returns it. split: another one than the experiment's
    validation split. step: see `parameters_and_vocabulary`. Raises UserError for a split of tests, and where nothing is
    decoded and measured.
    """
    experiment, directory = loaded.experiment, RunDirectory(path)
    directory.read()
    config = experiment.eval_dataset
    if split is not None and split != config.split:
        config = changed(config, f"SPLIT={split}", split=split)
    if config.split.lower().startswith("test"):
        raise UserError(
            f"The split {config.split!r} is for the result: decoding that was tuned on it tells nothing of other text. "
            "Tune on validation (leave SPLIT out)."
        )
    decoding = experiment.decoding
    own = decoding.decodes if decoding.method == _BEAM else DecodingConfig(_BEAM).decodes
    decodings = [
        dataclasses.replace(decoding, method=_BEAM, num_decodes=count, alpha=alpha)
        for count in beams or [own]
        for alpha in alphas
    ]
    prepared(loaded, directory, config)
    config = data_config(dataclasses.replace(config, max_batches=None), experiment.random_seed)
    built = assembly.assemble(experiment)
    params, vocabulary, at = parameters_and_vocabulary(directory, experiment, built, step)
    tried: list[tuple[DecodingConfig, list[TaskMetrics]]] = []
    with DataService(log=directory.evaluation_log) as service:
        check_same_vocabulary(service.describe(config).vocabulary, vocabulary, directory)
        evaluator = service.evaluator(config)
        if config.converter == MASKED_LM or not any(set(task.kinds) - {"score"} for task in evaluator.tasks):
            raise UserError(f"Nothing of {config.mixture_or_task_name} is decoded and measured: nothing can be tuned.")
        for decoding in decodings:
            changed_experiment = dataclasses.replace(experiment, decoding=decoding)
            outputs = model_outputs(dataclasses.replace(built, experiment=changed_experiment), vocabulary)
            tried.append((decoding, InferEval(lambda: evaluator, outputs).measure(params, at)))
    numbers = [
        {
            f"{one.task} / {name}": value
            for one in measured if one.decoding
            for name, value in one.metrics.items() if metric_values.is_number(value)
        }
        for _, measured in tried
    ]  # fmt: skip
    by = next(iter(numbers[0]))
    best = max(range(len(tried)), key=lambda place: numbers[place][by])
    chosen = tried[best][0]
    file = "" if experiment.decoding.method == _BEAM else "--gin_file=gin/decoding/beam.gin "
    name = "--gin.decoding.DecodingConfig"
    gin = f'GIN="{file}{name}.num_decodes={chosen.decodes} {name}.alpha={chosen.alpha}"'
    result = {
        "step": at,
        "task": config.mixture_or_task_name,
        "split": config.split,
        "tried": [
            {"decoding": decoding.settings(), "metrics": found}
            for (decoding, _), found in zip(tried, numbers, strict=True)
        ],
        "by": by,
        "best": chosen.settings(),
        "gin": gin,
    }
    written = directory.path / "tuning.json"
    write_json(written, to_json(result))
    rows = [
        [str(decoding.decodes), f"{decoding.alpha:g}", *map(metric_values.shown, found.values())]
        for (decoding, _), found in zip(tried, numbers, strict=True)
    ]
    print(f"{loaded.name} after step {at:,} on {config.split}:")
    for line in aligned(["num_decodes", "alpha", *numbers[0]], rows):
        print(f"  {line}")
    named = "" if path.name == loaded.name else f" RUN={path.name}"
    print(f"best by {by}: num_decodes {chosen.decodes}, alpha {chosen.alpha:g}. To use it:")
    print(f"  make eval EXP={loaded.name}{named} {gin}\nwritten to {shown(written)}", flush=True)
    return result
