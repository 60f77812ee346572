"""Runs that differ in their seed alone, as one result: its numbers are means with their range."""

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.run.directory import RunDirectory, differing, short
from t5xpg.run.evaluations import PREDICTED
from t5xpg.run.numbers import LOSSES, Results
from t5xpg.run.results import collect

_PUBLISHED = ("label", "step", "split", *LOSSES, "metrics", "blanks")  # of the evaluation of a further seed
_SHOWN = 5


def results_of_seeds(path: Path, first: Results, others: Sequence[RunDirectory]) -> list[dict[str, Any]]:
    """The published part of further runs, such as {"seed", "steps", "sources", "final", "evaluation", "other_splits"}.

    first: the results of the run that is published in full. path: its folder or file. Raises UserError if another run
    differs in more than the seed: in experiment, settings, data, vocabulary, versions, the steps trained, or the way of
    its evaluation.
    """
    published = []
    common_kinds = _evaluated_kinds(first)
    for one in (seed for seed in first.get("seeds", ()) if "selected" in seed or not first.get("selected")):
        common_kinds = common_kinds & _evaluated_kinds(one) or common_kinds
    paths = dict.fromkeys([first["identity"].get("seed"), *(one["seed"] for one in first.get("seeds", ()))], path)
    for other in others:
        results = collect(other)
        seed = results["identity"].get("seed")
        if seed in paths:
            raise UserError(f"{other.path} and {paths[seed]} have the same seed, {seed}: name runs of other seeds.")
        paths[seed] = other.path
        common_kinds = common_kinds & _evaluated_kinds(results) or common_kinds
        if different := differing(_circumstances(first, common_kinds), _circumstances(results, common_kinds)):
            listed = [f"{name} {short(one)} and {short(two)}" for name, (one, two) in different.items()]
            raise UserError(
                f"{path} and {other.path} differ in more than the seed: {'; '.join(listed[:_SHOWN])}"
                f"{'; …' if len(listed) > _SHOWN else ''}. RUNS=… and ADD=… take runs that differ in RANDOM_SEED "
                "alone, trained and evaluated the same way."
            )
        splits = results.get("other_splits", {})
        published.append(
            {
                "seed": seed,
                **{name: results[name] for name in ("steps", "sources", "selected") if results.get(name) is not None},
                "final": {"validation": results["final"]["validation"]},
                "evaluation": _published(results["evaluation"]),
                "other_splits": {split: _published(one) for split, one in splits.items()},
            }
        )
    return published


def _published(evaluation: Results | None) -> dict[str, Any] | None:
    return None if evaluation is None else {name: evaluation[name] for name in _PUBLISHED if name in evaluation}


def _circumstances(results: Results, kinds: Set[str]) -> dict[str, Any]:
    """The facts that have to be the same. The last step of a run that is finished or ended early is a result, and so is
    its best one. kinds: the kinds of evaluated steps that all runs so far have in common."""
    by_split = {"validation": results["evaluation"], **results.get("other_splits", {})}
    evaluated = _evaluated_kinds(results)
    identity = {name: value for name, value in results["identity"].items() if name != "seed"}
    settings, seed = identity.get("settings", {}), results["identity"].get("seed")
    # the seeds of datasets that are the run's own (RANDOM_SEED)
    seed_settings = {name for name, value in settings.items() if name.endswith(".seed") and value == seed}
    ended = results["steps"] == results["total_steps"] or (results.get("selected") or {}).get("ended_early")
    return {
        **identity,
        "settings": {name: value for name, value in settings.items() if name not in seed_settings},
        **{name: results[name] for name in ("experiment", "total_steps", "versions")},
        "steps": "all" if ended else results["steps"],
        "evaluated step": " or ".join(sorted(kinds & evaluated or evaluated)),
        "evaluation": {split: "none" if one is None else _evaluation_way(one) for split, one in by_split.items()},
    }


def _evaluation_way(evaluation: Results) -> dict[str, Any]:
    ways = {name: evaluation.get(name) for name in ("task", "mean_of_checkpoints")}
    predicted = evaluation.get("predicted", {})
    return ways | {task: {name: one.get(name) for name in PREDICTED} for task, one in predicted.items()}


def _evaluated_kinds(results: Results) -> set[str]:
    """The kind of step that was evaluated: "last", "best", or both if they are equal or nothing was evaluated."""
    evaluated = (results["evaluation"] or {}).get("step")
    steps = {"last": results["steps"], "best": (results.get("selected") or {}).get("step")}
    return {kind for kind, step in steps.items() if evaluated in (None, step)}
