"""The board of a sweep, leaderboard.json."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.pages import mean
from t5xpg.run.best import MIN, BestMetric
from t5xpg.run.report import Board, rounded
from t5xpg.study.run_batches import text_bytes
from t5xpg.study.runs import Outcome, StudyRun, outcome
from t5xpg.study.sweep.judged_tasks import evaluation_on
from t5xpg.study.sweep.plan import Fit, SweepPlan

_VALIDATION = "validation/"  # what the names of measures of a validation start with; boards leave it out
_EXPONENTS = np.linspace(0.01, 2.0, 1991)  # of scaling laws that are tried
_Outcomes = Sequence[tuple[StudyRun, Outcome]]


def results(
    plan: SweepPlan,
    runs: Sequence[StudyRun],
    chosen: Mapping[str, str] | None,
    planned: int,
    step_times: Mapping[str, Any] | None,
) -> Board:
    """The results of a sweep, for the board.

    runs: the known ones; planned: the number of runs in the end. chosen: the candidates of the final runs, None while
    they are searched for. step_times: of `step_times.measure`, None if not measured. "measure" is the metric of the
    plan; its values stand under "loss". "ended_early" is there where a final run did. "steps_to_reference" is the first
    step whose value is as good as the mean over seeds of the reference's last value; None for a run that does not reach
    it, or is validated on another task. "judged": the training data of recipes, and their losses on each task.
    """
    outcomes = [(run, outcome(run)) for run in runs]
    final = {
        name: [(run, out) for run, out in outcomes if (run.stage, run.labels["recipe"]) == ("final", name)]
        for name in plan.recipes
    }
    ended_early = (out.last and out.step < run.labels["steps"] for run, out in itertools.chain(*final.values()))
    short = [(run, out) for run, out in outcomes if run.stage == "short"]
    reference = plan.reference
    reference_loss = mean([last_value(out, plan.metric) for _, out in final[reference] if out.done])
    tasks = {name: _setting(entries, "eval_dataset.mixture_or_task_name") for name, entries in final.items()}
    entries = [
        _entry(plan, name, chosen, final[name], reference_loss if tasks[name] == tasks[reference] else None)
        | {"validated_on": tasks[name]}
        for name in plan.recipes
    ]
    board = {
        "measure": plan.metric.removeprefix(_VALIDATION),
        "mode": None if plan.decides.mode == MIN else plan.decides.mode,
        "runs": planned,
        "runs_done": len({run.path for run, out in outcomes if out.done}),
        "ended_early": any(ended_early) or None,
        "reference": {"recipe": reference, "steps": plan.final.steps, "loss": rounded(reference_loss)},
        "search": [
            {
                **run.labels,
                "done": out.done,
                "diverged_at": out.step if out.diverged else None,
                "loss": rounded(last_value(out, plan.metric)),
                "chosen": chosen is not None and chosen[run.labels["recipe"]] == run.labels["candidate"],
            }
            for run, out in outcomes
            if run.stage == "search"
        ],
        "final": entries,
        "short": _entry(plan, short[0][0].labels["recipe"], chosen, short, reference_loss) if short else None,
        "fit": plan.fit and _fit(plan.fit, final, {entry["recipe"]: entry["mean_loss"] for entry in entries}),
        "judged": plan.judged and _judged(plan.judged.tasks, final),
        "step_times": step_times,
    }
    optional = ("mode", "ended_early", "fit", "judged")
    return {name: value for name, value in board.items() if value is not None or name not in optional}


def last_value(run_outcome: Outcome, metric: str) -> float | None:
    """The value of a metric at the end; None if it is not finite or missing.

    Raises UserError if a run that is done never measured it.
    """
    if run_outcome.last is None:
        return None
    if not (curve := run_outcome.curve(metric)):
        names = dict.fromkeys(name for _, values in run_outcome.measured for name in values)
        raise UserError(f"sweep.toml: metric is {metric!r}, which is not measured.{nearest(metric, names)}")
    return curve[-1][1]


def _setting(runs: _Outcomes, name: str) -> Any:
    """A setting with which the runs of a recipe were started; None if none was started."""
    return next((run.recorded()["settings"].get(name) for run, _ in runs if run.directory.exists()), None)


def _entry(
    plan: SweepPlan, recipe: str, chosen: Mapping[str, str] | None, runs: _Outcomes, target: float | None
) -> dict[str, Any]:
    finished = [(run, out) for run, out in runs if out.done]
    measure = plan.metric.removeprefix(_VALIDATION)
    losses = [last_value(out, plan.metric) for _, out in finished]
    return {
        "recipe": recipe,
        "title": plan.recipes[recipe].title or recipe,
        "gin_file": plan.recipes[recipe].gin_file,
        "candidate": chosen[recipe] if chosen is not None else None,
        "steps": runs[0][0].labels["steps"] if runs else None,
        "seeds": [run.labels["seed"] for run, _ in finished],
        "seeds_planned": len(runs),
        "loss": [rounded(loss) for loss in losses],
        "mean_loss": rounded(mean(losses)),
        "steps_to_reference": [steps_to(out.curve(plan.metric), target, plan.decides) for _, out in finished],
        "target_tokens_per_step": mean([out.target_tokens / out.step for _, out in finished if out.step]),
        "curves": {
            str(run.labels["seed"]): {
                "step": [step for step, _ in out.curve(plan.metric)],
                measure: [rounded(value) for _, value in out.curve(plan.metric)],
            }
            for run, out in finished
        },
    }


def steps_to(curve: Sequence[tuple[int, float | None]], target: float | None, metric: BestMetric) -> int | None:
    """The first measured step with a value as good as the target."""
    if target is None:
        return None
    return next((step for step, value in curve if value is not None and not metric.better(target, value)), None)


def _fit(fit: Fit, final: Mapping[str, _Outcomes], losses: Mapping[str, float | None]) -> dict[str, Any]:
    """The law through the means over seeds and its prediction for the held-out recipe; None while a loss is missing."""
    names = [*fit.recipes, fit.held_out]
    sizes = {name: final[name][0][0].experiment.model.num_params for name in names if final[name]}
    known_losses = [losses[name] for name in names]
    board = {"recipes": fit.recipes, "held_out": fit.held_out, "num_params": sizes}
    if len(sizes) < len(names) or None in known_losses:
        return board | {"law": None, "predicted": None}
    law = fit_law([sizes[name] for name in fit.recipes], [loss for loss in known_losses[:-1] if loss is not None])
    return board | {"law": law._asdict(), "predicted": rounded(law.loss(sizes[fit.held_out]))}


class ScalingLaw(NamedTuple):
    """The loss of N parameters: irreducible + coefficient / N^exponent.

    It is the law of Hoffmann et al. 2022 (arXiv 2203.15556, section 3.3) without the term of the tokens: all sizes see
    equally many.
    """

    irreducible: float
    coefficient: float
    exponent: float

    def loss(self, parameters: float) -> float:
        return self.irreducible + self.coefficient * parameters**-self.exponent


def fit_law(parameters: Sequence[int], losses: Sequence[float]) -> ScalingLaw:
    """Fit the law by least squares, with exponents from 0.01 to 2 in steps of 0.001, and an E of at least 0.

    parameters, losses: of at least three sizes. For each exponent, fitting the rest is a linear problem.
    """
    sizes, values = np.asarray(parameters, np.float64), np.asarray(losses, np.float64)
    scale = np.exp(np.log(sizes).mean())  # so that powers are near 1, and the equations well conditioned
    best, least = ScalingLaw(0.0, 0.0, 0.0), np.inf
    for exponent in _EXPONENTS:
        power = (sizes / scale) ** -exponent
        irreducible, slope = np.linalg.lstsq(np.stack([np.ones_like(power), power], -1), values)[0]
        if irreducible < 0:
            irreducible, slope = 0.0, power @ values / (power @ power)
        if (squares := float(((irreducible + slope * power - values) ** 2).sum())) < least:
            best, least = ScalingLaw(float(irreducible), float(slope * scale**exponent), float(exponent)), squares
    return best


def _judged(tasks: Sequence[str], final: Mapping[str, _Outcomes]) -> dict[str, Any]:
    """The training data of recipes, and their losses on judged tasks in nats a target token, means over seeds."""
    return {
        "tasks": tasks,
        "recipes": {
            name: _training_facts([(run, out) for run, out in outcomes if out.done])
            | {"loss": {task: _losses_on(task, [run for run, _ in outcomes]) for task in tasks}}
            for name, outcomes in final.items()
        },
    }


def _training_facts(done: _Outcomes) -> dict[str, Any]:
    """The training data of the finished runs of a recipe; None for facts that are not known yet."""
    return {
        "task": _setting(done, "train_dataset.mixture_or_task_name"),
        "rows": _setting(done, "train_dataset.batch_size"),
        "lengths": _setting(done, "train_dataset.task_feature_lengths") or {},
        "packed": _setting(done, "train_dataset.pack"),
        "seeds": [run.labels["seed"] for run, _ in done],
        "target_tokens": mean([out.target_tokens for _, out in done]),
        "text_bytes": mean([text_bytes(run) for run, _ in done]),
    }


def _losses_on(task: str, runs: Sequence[StudyRun]) -> dict[str, Any]:
    """{"seeds": the loss of each, "mean", "parts": {task of a mixture: mean}}; no means while one is missing."""
    measured = [evaluation_on(run, task) for run in runs]
    evaluations = [one for one in measured if one is not None]
    complete = len(evaluations) == len(runs)
    parts = dict.fromkeys(part for one in evaluations for part in one.get("tasks", {})) if complete else {}
    return {
        "seeds": [rounded(one["loss"]) for one in evaluations],
        "mean": rounded(mean([one["loss"] for one in evaluations])) if complete else None,
        "parts": {
            part: rounded(mean([one["tasks"].get(part, {}).get("loss") for one in evaluations])) for part in parts
        },
    }
