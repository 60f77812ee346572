"""Runs that differ in their seed alone, as one result: its numbers are means with their range."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.run.directory import RunDirectory, differing, short
from t5xpg.run.results import PREDICTED, collect

Results = Mapping[str, Any]
Key = tuple[str, str, str]  # task ("" for the loss and the blanks of a whole split), measure, split

LOSSES = ("nats_per_byte", "loss", "accuracy")
FILLED_IN = "% of {}s filled in"  # with a kind of blanks: "word"
_KEPT = ("step", "split", *LOSSES, "metrics", "blanks")  # of an evaluation
_SHOWN = 5


def of_other_seeds(path: Path, first: Results, others: Sequence[RunDirectory]) -> list[dict[str, Any]]:
    """What is published of further runs: {"seed", "steps", "sources", "final", "evaluation", "other_splits"} of each.

    first: the results of the run that is published in full. path: where they are from. Raises UserError if another run
    differs in more than the seed: in experiment, settings, data, vocabulary, versions, the steps trained, or how it was
    evaluated.
    """
    found = []
    kinds = _evaluated_step(first)
    paths = dict.fromkeys([first["identity"].get("seed"), *(one["seed"] for one in first.get("seeds", ()))], path)
    for other in others:
        results = collect(other)
        seed = results["identity"].get("seed")
        if seed in paths:
            raise UserError(f"{other.path} and {paths[seed]} have the same seed, {seed}: name runs of other seeds.")
        paths[seed] = other.path
        kinds = kinds & _evaluated_step(results) or kinds
        if different := differing(_circumstances(first, kinds), _circumstances(results, kinds)):
            listed = [f"{name} {short(one)} and {short(two)}" for name, (one, two) in different.items()]
            raise UserError(
                f"{path} and {other.path} differ in more than the seed: {'; '.join(listed[:_SHOWN])}"
                f"{'; …' if len(listed) > _SHOWN else ''}. RUNS=… and ADD=… take runs that differ in RANDOM_SEED "
                "alone, trained and evaluated the same way."
            )
        splits = results.get("other_splits", {})
        found.append(
            {
                "seed": seed,
                **{name: results[name] for name in ("steps", "sources")},
                "final": {"validation": results["final"]["validation"]},
                "evaluation": _kept(results["evaluation"]),
                "other_splits": {split: _kept(one) for split, one in splits.items()},
            }
        )
    return found


def evaluations(results: Results) -> list[Results]:
    """What a run was evaluated on after its last step: validation, and other splits."""
    return [one for one in (results["evaluation"], *results.get("other_splits", {}).values()) if one]


def values(results: Results) -> dict[Key, list[float]]:
    """The last numbers of each run, {(task, measure, split): [of the first run, of the second, …]}.

    They are from evaluations if there are any, else from the last validation while training. Only finite ones count.
    """
    found: dict[Key, list[float]] = {}
    for run in (results, *results.get("seeds", ())):
        for one in evaluations(run) or [run["final"]["validation"]]:
            split = str(one.get("split", "validation"))
            whole = {name: one.get(name) for name in LOSSES}
            whole |= {FILLED_IN.format(kind): blanks["exact_match"] for kind, blanks in one.get("blanks", {}).items()}
            for task, table in {"": whole, **one.get("metrics", {})}.items():
                for name, value in table.items():
                    if isinstance(value, int | float):
                        found.setdefault((task, name, split), []).append(value)
    return found


def _kept(evaluation: Results | None) -> dict[str, Any] | None:
    return None if evaluation is None else {name: evaluation[name] for name in _KEPT if name in evaluation}


def _circumstances(results: Results, kinds: Set[str]) -> dict[str, Any]:
    """What has to be the same. Not the last step of a run that ended early, nor its best step: they are results.
    kinds: of the evaluated steps that the runs so far have in common."""
    of_splits = {"validation": results["evaluation"], **results.get("other_splits", {})}
    evaluated = _evaluated_step(results)
    identity = {name: value for name, value in results["identity"].items() if name != "seed"}
    settings, seed = identity.get("settings", {}), results["identity"].get("seed")
    # the seed that datasets were given is the run's (RANDOM_SEED)
    given = {name for name, value in settings.items() if name.endswith(".seed") and value == seed}
    return {
        **identity,
        "settings": {name: value for name, value in settings.items() if name not in given},
        **{name: results[name] for name in ("experiment", "total_steps", "versions")},
        "steps": "ended early" if (results.get("selected") or {}).get("ended_early") else results["steps"],
        "evaluated step": " or ".join(sorted(kinds & evaluated or evaluated)),
        "evaluation": {split: "none" if one is None else _way(one) for split, one in of_splits.items()},
    }


def _way(evaluation: Results) -> dict[str, Any]:
    ways = {name: evaluation.get(name) for name in ("task", "mean_of_checkpoints")}
    predicted = evaluation.get("predicted", {})
    return ways | {task: {name: one.get(name) for name in PREDICTED} for task, one in predicted.items()}


def _evaluated_step(results: Results) -> set[str]:
    """Which step was evaluated: "last", "best", or both where they are the same or nothing was evaluated."""
    at = (results["evaluation"] or {}).get("step")
    steps = {"last": results["steps"], "best": (results.get("selected") or {}).get("step")}
    return {kind for kind, step in steps.items() if at in (None, step)}
