"""Beam search tuned on a validation split: a run's predictions with each number of beams and each length penalty."""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.markdown import aligned
from t5xpg.base.metric_values import format_value, is_number
from t5xpg.evaluate.evaluation import evaluate
from t5xpg.evaluate.trained_model import Step
from t5xpg.experiment.config import LoadedConfig
from t5xpg.models.decoding import DecodingConfig
from t5xpg.run.best import MAX, MIN, BestMetric
from t5xpg.run.command_options import experiment_of, options_for
from t5xpg.run.directory import RunDirectory

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
    """Evaluate a checkpoint with each number of `beams` (None: the experiment's, or 4) and each of `alphas`.

    Each pair is an evaluation of its own in the run (`evaluate`). Prints the metrics of every pair, and what to type
    for the best pair by `criterion`; returns {"tried": their records, "by", "mode", "best": a decoding, "gin"}. split:
    in place of the experiment's validation split. step: see `parameters_and_vocabulary`. typed: the overrides and the
    gin files that the experiment was loaded with. Raises UserError for a test split, and where nothing is both decoded
    and measured.
    """
    experiment, directory = loaded.experiment, RunDirectory(path)
    if (measured_split := split or experiment.eval_dataset.split).lower().startswith("test"):
        raise UserError(
            f"The split {measured_split!r} is for the result: decoding that was tuned on it tells nothing of other "
            "text. Tune on validation (leave SPLIT out)."
        )
    trials: list[dict[str, Any]] = []
    for decoding in _decodings(experiment.decoding, beams, alphas):
        variant = dataclasses.replace(loaded, experiment=dataclasses.replace(experiment, decoding=decoding))
        trials.append(evaluate(variant, path, split=split, step=step))
        if not (names := comparable([numbers(trial) for trial in trials])):
            raise UserError(
                f"Nothing of {trials[0]['task']} is decoded and measured as a number: nothing can be tuned."
            )
    by, mode = criterion(trials, names, experiment.selection)
    best = (min if mode == MIN else max)(trials, key=lambda trial: numbers(trial)[by])["decoding"]
    rows = [
        [*(str(trial["decoding"][name]) for name in _TUNED), *(format_value(numbers(trial)[name]) for name in names)]
        for trial in trials
    ]
    print(f"{loaded.name} after step {trials[0]['step']:,} on {measured_split}:")
    print("\n".join(aligned([*_TUNED, *names], rows)))
    of_step = "" if step is None else f" STEP={step}"
    command = f"make eval {options_for(experiment_of(directory.read()), path, gin_of(best, *typed))}{of_step}"
    print(f"best by the {'lowest' if mode == MIN else 'highest'} {by}: {command}", flush=True)
    return {"tried": trials, "by": by, "mode": mode, "best": best, "gin": gin_of(best)}


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """{"task / metric": value} of the numbers of an evaluation's record that depend on its decoding."""
    return {
        f"{task} / {name}": value
        for task, metrics in record.get("metrics", {}).items()
        if record["predicted"][task]["decoding"]
        for name, value in metrics.items()
        if is_number(value)
    }


def _decodings(
    decoding: DecodingConfig, beams: Sequence[int] | None, alphas: Sequence[float]
) -> Sequence[DecodingConfig]:
    """A beam search for each pair of a number of beams and a length penalty; otherwise as the experiment's `decoding`.
    Raises UserError for impossible values."""
    if decoding.method != "beam":  # as gin/decoding/beam.gin makes it
        kept = {name: getattr(decoding, name) for name in ("max_decode_length", "extra_length", "allowed", "pattern")}
        decoding = DecodingConfig("beam", **kept)
    pairs = itertools.product(beams or [decoding.decodes], alphas)
    return [dataclasses.replace(decoding, num_decodes=count, alpha=alpha) for count, alpha in pairs]


def criterion(
    trials: Sequence[Mapping[str, Any]], names: Sequence[str], selection: BestMetric | None
) -> tuple[str, str | None]:
    """The metric that the best is chosen by, and its mode: the experiment's, where it is among `names`; else the first
    that is not equal in all trials, as those of scores are, the highest."""
    if selection is not None and (own := selection.metric.replace("/", " / ", 1)) in names:
        return own, selection.mode
    changed = [name for name in names if len({numbers(trial)[name] for trial in trials}) > 1]
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
