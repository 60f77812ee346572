"""Beam search tuned on a validation split: a run's predictions with each number of beams and each length penalty."""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import write_json
from t5xpg.base.markdown import aligned
from t5xpg.base.metric_values import format_value, is_number
from t5xpg.data.batch import MASKED_LM
from t5xpg.data.stream.client import DataService
from t5xpg.evaluate.evaluation import check_and_prepare
from t5xpg.evaluate.infer_eval import InferEval, model_outputs
from t5xpg.evaluate.infer_sources import replace_fields
from t5xpg.evaluate.trained_model import Step, check_same_vocabulary, parameters_and_vocabulary
from t5xpg.experiment import assembly
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.identity import data_config
from t5xpg.models.decoding import DecodingConfig
from t5xpg.run.best import MAX, MIN, BestMetric
from t5xpg.run.command_options import experiment_of, options_for
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import to_json

_TUNED = ("num_decodes", "alpha")
_OPTION = re.compile(r"[\w./]*\bDecodingConfig\.(\w+) *=")


def tune(
    loaded: LoadedConfig,
    path: Path,
    alphas: Sequence[float],
    beams: Sequence[int] | None,
    split: str | None,
    step: Step,
    typed: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> dict[str, Any]:
    """Decode all of a split with each number of `beams` (None: the experiment's, or 4) and each of `alphas`.

    Prints the metrics of every pair, and what to type for the best pair by `criterion`. Writes this into the run's
    tuning.json, and returns it. split: in place of the experiment's validation split. step: see
    `parameters_and_vocabulary`. typed: the overrides and the gin files that the experiment was loaded with. Raises
    UserError for a test split, and where nothing is both decoded and measured.
    """
    experiment, directory, config = loaded.experiment, RunDirectory(path), loaded.experiment.eval_dataset
    directory.read()
    if split is not None and split != config.split:
        config = replace_fields(config, f"SPLIT={split}", split=split)
    if config.split.lower().startswith("test"):
        raise UserError(
            f"The split {config.split!r} is for the result: decoding that was tuned on it tells nothing of other text. "
            "Tune on validation (leave SPLIT out)."
        )
    decodings = _decodings(experiment.decoding, beams, alphas)  # refuses impossible values before anything is made
    check_and_prepare(loaded, directory, config)
    config = data_config(dataclasses.replace(config, max_batches=None), experiment.random_seed)
    built = assembly.assemble(experiment)
    params, vocabulary, checkpoint_step = parameters_and_vocabulary(directory, experiment, built, step)
    trials: list[dict[str, Any]] = []
    with DataService(log=directory.evaluation_log) as service:
        check_same_vocabulary(service.describe(config).vocabulary, vocabulary, directory)
        evaluator = service.evaluator(config)
        if config.converter == MASKED_LM or not any(set(task.kinds) - {"score"} for task in evaluator.tasks):
            raise UserError(f"Nothing of {config.mixture_or_task_name} is decoded and measured: nothing can be tuned.")
        for decoding in decodings:
            variant = dataclasses.replace(built, experiment=dataclasses.replace(experiment, decoding=decoding))
            outputs = model_outputs(variant, vocabulary)
            measured = InferEval(lambda: evaluator, outputs).measure(params, checkpoint_step)
            decoded = [(one.task, *pair) for one in measured if one.decoding for pair in one.metrics.items()]
            numbers = {f"{task} / {name}": value for task, name, value in decoded if is_number(value)}
            trials.append({"decoding": decoding.settings(), "metrics": numbers})
            if not (names := comparable([trial["metrics"] for trial in trials])):
                raise UserError(
                    f"No metric of what {config.mixture_or_task_name} decodes is a number: nothing can be tuned."
                )
    by, mode = criterion(trials, names, experiment.selection)
    best = (min if mode == MIN else max)(trials, key=lambda trial: trial["metrics"][by])["decoding"]
    result = {"step": checkpoint_step, "split": config.split, "tried": trials, "by": by, "mode": mode, "best": best}
    result["gin"] = gin_of(best)
    write_json(directory.path / "tuning.json", to_json(result))
    rows = [
        [*(str(trial["decoding"][name]) for name in _TUNED), *(format_value(trial["metrics"][name]) for name in names)]
        for trial in trials
    ]
    print(f"{loaded.name} after step {checkpoint_step:,} on {config.split}:")
    print("\n".join(aligned([*_TUNED, *names], rows)))
    of_step = "" if step is None else f" STEP={step}"
    command = f"make eval {options_for(experiment_of(directory), path, gin_of(best, *typed))}{of_step}"
    print(f"best by the {'lowest' if mode == MIN else 'highest'} {by}: {command}")
    print(f"written to {paths.shown(directory.path / 'tuning.json')}", flush=True)
    return result


def _decodings(
    decoding: DecodingConfig, beams: Sequence[int] | None, alphas: Sequence[float]
) -> Sequence[DecodingConfig]:
    """A beam search for each pair of a number of beams and a length penalty; otherwise as the experiment's `decoding`.
    Raises UserError for impossible values."""
    if decoding.method != "beam":  # as gin/decoding/beam.gin makes it
        decoding = DecodingConfig("beam", decoding.max_decode_length, extra_length=decoding.extra_length)
    pairs = itertools.product(beams or [decoding.decodes], alphas)
    return [dataclasses.replace(decoding, num_decodes=count, alpha=alpha) for count, alpha in pairs]


def criterion(
    trials: Sequence[Mapping[str, Any]], names: Sequence[str], selection: BestMetric | None
) -> tuple[str, str | None]:
    """The metric that the best is chosen by, and its mode: the experiment's, where it is among `names`; else the first
    that is not equal in all trials, as those of scores are, the highest."""
    if selection is not None and (own := selection.metric.replace("/", " / ", 1)) in names:
        return own, selection.mode
    changed = [name for name in names if len({trial["metrics"][name] for trial in trials}) > 1]
    return (changed or names)[0], MAX


def gin_of(best: Mapping[str, Any], overrides: Sequence[str] = (), files: Sequence[str] = ()) -> str:
    """GIN=… of the beam search `best`, over `files` and `overrides` without the options of other methods."""
    # the fragment resets what it does not name, whatever the experiment has
    usual = DecodingConfig("beam").settings()
    chosen = {name: value for name, value in best.items() if name in _TUNED or value != usual.get(name)}
    read = {*usual, "extra_length"} - {"method"}
    given = [each for each in overrides if not (option := _OPTION.match(each)) or option[1] in read]
    given += [f"decoding.DecodingConfig.{name}={value}" for name, value in chosen.items()]
    both = [*files, "gin/decoding/beam.gin"]
    return " ".join([*(f"--gin_file={each}" for each in both), *(f"--gin.{each}" for each in given)])


def comparable(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the metrics that are finite numbers in all trials, in the order of the first."""
    return [name for name in trials[0] if all(is_number(one.get(name)) and math.isfinite(one[name]) for one in trials)]
