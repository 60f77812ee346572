"""What a sweep found, as one JSON value: made from the records of its runs, and from nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.run.directory import RunDirectory
from t5xpg.study import judging, text_read
from t5xpg.study.judged_sources import sources
from t5xpg.study.plan import Plan, Recipe, Run
from t5xpg.study.runs import Outcome, outcome

FORMAT = 1
MEASURE = "nats_per_byte"
_DIGITS = 6

Leaderboard = dict[str, Any]


def best_candidates(plan: Plan, folder: Path) -> dict[str, str] | None:
    """The candidate of each recipe with the lowest loss at the end of its search; None while one is not done."""
    best = {recipe.name: recipe.candidates[0] for recipe in plan.recipes}
    for recipe in plan.recipes:
        tried = [(run, outcome(run, folder)) for run in plan.search() if run.recipe == recipe]
        if not all(found.done(run) for run, found in tried):
            return None
        losses = {run.candidate: _last_loss(found) for run, found in tried}
        finite = {candidate: loss for candidate, loss in losses.items() if loss is not None}
        if finite:
            best[recipe.name] = min(finite, key=lambda candidate: finite[candidate])
    return best


def collect(experiment: str, plan: Plan, folder: Path, step_times: Mapping[str, Any] | None) -> Leaderboard:
    """Everything that the page shows. step_times: from `step_times.measure`, None where they were not measured.

    Steps to the reference are of the first measured validation loss that is as low as the mean over seeds of the
    reference's last one; None for a run that does not come so far, or is validated on another task. A plan that judges
    its runs has "judged": what each recipe was trained on, and its losses on each task and the parts of a mixture.
    """
    best = best_candidates(plan, folder)
    search = plan.search()
    later = plan.final(best) if best is not None else []
    outcomes = {run: outcome(run, folder) for run in [*search, *later]}
    finals = {recipe.name: _of(later, "final", recipe) for recipe in plan.recipes}
    target = _mean([_last_loss(outcomes[run]) for run in finals[plan.reference] if outcomes[run].done(run)])
    validated_on = {recipe.name: _validated_on(finals[recipe.name], folder) for recipe in plan.recipes}
    comparable = {name: target if validated_on[name] == validated_on[plan.reference] else None for name in validated_on}
    short = [run for run in later if run.stage == "short"]
    return {
        "format": FORMAT,
        "experiment": experiment,
        "measure": MEASURE,
        "runs": len(outcomes) if best is not None else len(search) + _later_runs(plan),
        "runs_done": sum(found.done(run) for run, found in outcomes.items()),
        "reference": {"recipe": plan.reference, "steps": plan.final_steps, "loss": _rounded(target)},
        "search": [_tried(run, outcomes[run], best) for run in search],
        "final": [
            _entry(recipe, finals[recipe.name], outcomes, comparable[recipe.name], best)
            | {"validated_on": validated_on[recipe.name]}
            for recipe in plan.recipes
        ],
        "short": _entry(short[0].recipe, short, outcomes, target, best) if short else None,
        **({"judged": _judged(plan, finals, outcomes, folder)} if plan.judged else {}),
        "step_times": step_times,
        "sources": sources(folder / run.folder for run in outcomes),
    }


def _validated_on(runs: Sequence[Run], folder: Path) -> str | None:
    """The task of their validation; None while no run has begun."""
    tasks = [settings["eval_dataset.mixture_or_task_name"] for run in runs if (settings := _settings(run, folder))]
    return str(tasks[0]) if tasks else None


def _settings(run: Run, folder: Path) -> dict[str, Any]:
    """What a run was started with; empty where it was not."""
    directory = RunDirectory(folder / run.folder)
    settings: dict[str, Any] = directory.read()["identity"]["settings"] if directory.exists() else {}
    return settings


def _judged(
    plan: Plan, finals: Mapping[str, Sequence[Run]], outcomes: Mapping[Run, Outcome], folder: Path
) -> dict[str, Any]:
    """What the recipes were trained on, and their losses elsewhere: in nats a target token, the means over seeds."""
    return {
        "tasks": list(plan.judged),
        "recipes": {
            name: _trained_on([run for run in runs if outcomes[run].done(run)], outcomes, folder)
            | {"loss": {task: _judged_on(task, runs, folder) for task in plan.judged}}
            for name, runs in finals.items()
        },
    }


def _trained_on(runs: Sequence[Run], outcomes: Mapping[Run, Outcome], folder: Path) -> dict[str, Any]:
    """Of the runs of a recipe that are done; None for what is not known yet."""
    settings = _settings(runs[0], folder) if runs else {}
    return {
        "task": settings.get("train_dataset.mixture_or_task_name"),
        "rows": settings.get("train_dataset.batch_size"),
        "lengths": settings.get("train_dataset.task_feature_lengths", {}),
        "packed": settings.get("train_dataset.pack"),
        "seeds": [run.seed for run in runs],
        "target_tokens": _mean([outcomes[run].target_tokens for run in runs]),
        "text_bytes": _mean([text_read.of(run, folder) for run in runs]),
    }


def _judged_on(task: str, runs: Sequence[Run], folder: Path) -> dict[str, Any]:
    """{"seeds": the loss of each, "mean", "parts": {task of a mixture: mean}}; no means while one is missing."""
    measured = [judging.of(run, task, folder) for run in runs]
    found = [one for one in measured if one is not None]
    parts = dict.fromkeys(part for one in found for part in one.get("tasks", {}))
    every = len(found) == len(runs)
    return {
        "seeds": [_rounded(one["loss"]) for one in found],
        "mean": _rounded(_mean([one["loss"] for one in found])) if every else None,
        "parts": {part: _rounded(_mean([one["tasks"].get(part, {}).get("loss") for one in found])) for part in parts}
        if every
        else {},
    }


def _later_runs(plan: Plan) -> int:
    return len(plan.final({recipe.name: recipe.candidates[0] for recipe in plan.recipes}))


def _of(runs: Sequence[Run], stage: str, recipe: Recipe) -> list[Run]:
    return [run for run in runs if run.stage == stage and run.recipe == recipe]


def _tried(run: Run, found: Outcome, best: Mapping[str, str] | None) -> dict[str, Any]:
    return {
        "recipe": run.recipe.name,
        "candidate": run.candidate,
        "steps": run.steps,
        "seed": run.seed,
        "done": found.done(run),
        "diverged_at": found.step if found.diverged else None,
        "loss": _rounded(_last_loss(found)) if found.done(run) else None,
        "chosen": best is not None and best[run.recipe.name] == run.candidate,
    }


def _entry(
    recipe: Recipe,
    runs: Sequence[Run],
    outcomes: Mapping[Run, Outcome],
    target: float | None,
    best: Mapping[str, str] | None,
) -> dict[str, Any]:
    done = [run for run in runs if outcomes[run].done(run)]
    losses = [_last_loss(outcomes[run]) for run in done]
    return {
        "recipe": recipe.name,
        "title": recipe.title,
        "gin_file": recipe.gin_file,
        "candidate": best[recipe.name] if best is not None else None,
        "steps": runs[0].steps if runs else None,
        "seeds": [run.seed for run in done],
        "seeds_planned": len(runs),
        "loss": [_rounded(loss) for loss in losses],
        "mean_loss": _rounded(_mean(losses)),
        "steps_to_reference": [_steps_to(outcomes[run], target) for run in done],
        "target_tokens_per_step": _tokens_per_step(done, outcomes),
        "curves": {
            str(run.seed): {
                "step": [record["step"] for record in outcomes[run].validation],
                MEASURE: [_rounded(record[MEASURE]) for record in outcomes[run].validation],
            }
            for run in done
        },
    }


def _last_loss(found: Outcome) -> float | None:
    """The validation loss at the end; None where it is not finite or there is none."""
    return found.validation[-1][MEASURE] if found.validation and not found.diverged else None


def _steps_to(found: Outcome, target: float | None) -> int | None:
    if target is None:
        return None
    reached = (r["step"] for r in found.validation if r[MEASURE] is not None and r[MEASURE] <= target)
    return next(reached, None)


def _tokens_per_step(runs: Sequence[Run], outcomes: Mapping[Run, Outcome]) -> float | None:
    """Target tokens that an update was made from, the mean over runs."""
    return _mean([outcomes[run].target_tokens / outcomes[run].step for run in runs if outcomes[run].step])


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return statistics.mean(finite) if finite and len(finite) == len(values) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
