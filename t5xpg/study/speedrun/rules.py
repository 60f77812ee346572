"""The rules of a speedrun: speedrun.toml, what an entry may not change, and when its seeds clear the noise."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from t5xpg.experiment.config import settings
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.known_tasks import known_task
from t5xpg.study.plan_file import Plan

P = 0.01  # the probability that an entry counts whose expected loss is just the target
_FREE = ("eval_dataset.seed", "eval_dataset.metrics")  # what an entry may change; the seed is the run's


class SpeedrunPlan(Plan):
    """The contents of speedrun.toml. target: the mean over seeds of the validation loss has to be at or below it, in
    nats per target byte. deviation: one standard deviation of that loss over seeds; None if it was not measured yet.
    """

    target: Annotated[float, Field(gt=0)]
    deviation: Annotated[float, Field(gt=0)] | None = None
    seeds: int = Field(3, ge=2)  # at least
    cores: int = Field(2, ge=1)

    @property
    def noise(self) -> float | None:
        """The least `margin` of a record, in nats: by chance alone, it is exceeded with probability `P`."""
        return None if self.deviation is None else statistics.NormalDist(0.0, self.deviation).inv_cdf(1.0 - P)


def margin(losses: Sequence[float], target: float) -> float:
    """(target - mean) * sqrt(n), in nats. If the expected loss is the target, this has mean 0 and the standard
    deviation of one loss, whatever n is (the rule of the NanoGPT speedrun, Jordan et al. 2024)."""
    return (target - statistics.fmean(losses)) * math.sqrt(len(losses))


def objections(plan: SpeedrunPlan, losses: Sequence[float | None]) -> Iterator[str]:
    """Yields reasons why losses, one of each seed at its end, make no record. A loss is None if it is not finite."""
    finite = [loss for loss in losses if loss is not None]
    if len(losses) < plan.seeds:
        yield f"{len(losses)} seeds, and at least {plan.seeds} are needed"
    if len(finite) < len(losses):
        yield f"{len(losses) - len(finite)} of {len(losses)} runs have no finite loss at their end"
    elif plan.noise is None:
        yield "the noise is not measured: deviation is missing in speedrun.toml"
    elif margin(finite, plan.target) < plan.noise:
        yield f"(target - mean) * sqrt(n) is {margin(finite, plan.target):+.4f} and does not clear {plan.noise:.4f}"


def rule_violations(entry: Experiment, rules: Experiment) -> Iterator[str]:
    """Yields an entry's violations of the rules. rules: the experiment that every entry includes."""
    actual, fixed = settings(entry), settings(rules)
    for name in sorted(actual.keys() | fixed.keys()):
        if name.startswith("eval_dataset") and name not in _FREE and actual.get(name) != fixed.get(name):
            yield f"{name} is {actual.get(name)!r}, and validation is fixed: {fixed.get(name)!r}"
    if entry.initial is not None or entry.teacher is not None:
        yield "it starts from a checkpoint, and pretrained weights are not allowed"
    if entry.selection is not None and entry.selection.patience is not None:
        yield "it ends early by its validation loss, and the number of steps is what an entry claims"
    train = entry.train_dataset
    text, trained_on = (
        row and row.dataset
        for row in (
            known_task(rules.eval_dataset.mixture_or_task_name),
            known_task(train.mixture_or_task_name, entry.needs),
        )
    )
    if (train.split, trained_on) != ("train", text):
        yield f"it trains on {train.split} of {train.mixture_or_task_name}, and may on train of {text} alone"
