"""The best evaluation of a run, and the end of a run whose evaluations get no better (early stopping).

Measures have names: "validation/loss", for one task of a mixture "validation/<task>/loss", for the metric of a task
"<task>/<metric>". The best evaluation follows from a run's records alone: a run that continues computes it again from
its records, as an unbroken run has it.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from t5xpg.base.errors import UserError, nearest

VALIDATION, INFER_EVAL = "validation", "infer_eval"  # splits of records
MIN, MAX = "min", "max"
# The measures of a validation that can select the best evaluation, and whether the lowest or the highest value is best.
MEASURES = {"loss": MIN, "nats_per_byte": MIN, "bits_per_byte": MIN, "accuracy": MAX, "encoder_use": MAX}

Values = Mapping[str, float | None]  # None: not finite


@dataclass(frozen=True)
class BestMetric:
    """metric: a name as `values_of` gives it. mode: whether the lowest ("min") or the highest ("max") is the best; None
    for a measure of a validation, whose mode is known. keep: write a checkpoint at every evaluation that is the best so
    far, and keep the last of them. patience: the number of evaluations in a row without a better one after which the
    run ends; None for never. Raises UserError for invalid values.
    """

    metric: str = "validation/loss"
    mode: str | None = None
    keep: bool = True
    patience: int | None = None

    def __post_init__(self) -> None:
        prefix, _, measure = str(self.metric).rpartition("/")
        if not prefix or not measure:
            raise UserError(
                f"BEST_METRIC is {self.metric!r}: expected 'validation/loss' or another measure of the validation, or "
                "a metric of a task as '<task>/<metric>'."
            )
        if self.mode not in (None, MIN, MAX):
            raise UserError(f"BEST_MODE is {self.mode!r}: expected 'min' or 'max'.")
        if self.patience is not None and not (type(self.patience) is int and self.patience >= 1):
            raise UserError(f"EARLY_STOP_PATIENCE is {self.patience!r}: expected None or a whole number of at least 1.")
        object.__setattr__(self, "mode", self._mode(prefix, measure))

    def _mode(self, prefix: str, measure: str) -> str:
        if not self.of_validation:
            if self.mode is None:
                raise UserError(
                    f"BEST_MODE has to say whether {self.metric} is better the lower ('min') or the higher ('max')."
                )
            return self.mode
        if measure not in MEASURES:
            known = [f"{prefix}/{known_measure}" for known_measure in MEASURES]
            raise UserError(f"BEST_METRIC is {self.metric!r}.{nearest(self.metric, known)}")
        if self.mode not in (None, MEASURES[measure]):
            raise UserError(f"BEST_MODE is {self.mode!r}, and the best {self.metric} is {MEASURES[measure]}.")
        return MEASURES[measure]

    @property
    def of_validation(self) -> bool:
        """True if validations measure it, every EVAL_PERIOD; else the metrics of tasks do, every INFER_EVAL_PERIOD."""
        return self.metric.split("/")[0] == VALIDATION

    def require(self, measured: Collection[str]) -> None:
        """Raise UserError, with the nearest names, where the metric is not among what is measured."""
        if self.metric not in measured:
            raise UserError(f"BEST_METRIC is {self.metric!r}, which is not measured.{nearest(self.metric, measured)}")

    def better(self, value: float | None, other: float | None) -> bool:
        """True if `value` is better than `other`. A value that is not finite (None) is worse than any other."""
        if value is None or other is None:
            return value is not None
        return value < other if self.mode == MIN else value > other


class Best:
    """The best evaluation of a run so far. Step 0 does not count: its evaluation measures the initial parameters."""

    def __init__(self, selection: BestMetric | None) -> None:
        self.selection = selection
        self.step: int | None = None  # of the best; None before the first with a finite value
        self.value: float | None = None
        self.since = 0  # evaluations since the best
        self._last: int | None = None

    @classmethod
    def of_records(cls, records: Iterable[Mapping[str, Any]], selection: BestMetric | None, step: int) -> Self:
        """The best after the lines of metrics.jsonl up to `step`, in their order."""
        best = cls(selection)
        for record in records:
            if record["step"] <= step:
                best.add(record["step"], values_of(record))
        return best

    def add(self, step: int, values: Values) -> None:
        """Take in what was measured at a step. Ignored if the metric is not among the values."""
        if self.selection is None or step == 0 or self.selection.metric not in values:
            return
        value = values[self.selection.metric]
        self._last = step
        if self.selection.better(value, self.value):
            self.step, self.value, self.since = step, value, 0
        else:
            self.since += 1

    def to_keep(self, step: int) -> bool:
        """True if the state after `step` is the best so far and a checkpoint keeps it."""
        return self.selection is not None and self.selection.keep and self.step == step

    def ends(self, step: int) -> bool:
        """True if the run ends after `step`: it has just been measured, and the patience is used up."""
        if self.selection is None or self.selection.patience is None:
            return False
        return self._last == step and self.since >= self.selection.patience

    def early_end(self, step: int, total_steps: int) -> str | None:
        """The reason why a run of `total_steps` ends after `step`; None if it does not, or would end there anyway."""
        if step >= total_steps or not self.ends(step):
            return None
        assert self.selection is not None
        evaluations = f"{self.since} evaluation{'s' if self.since != 1 else ''}"
        return f"{self.selection.metric} has not been better for {evaluations} (EARLY_STOP_PATIENCE); {self}"

    def __str__(self) -> str:
        """Such as "the best validation/loss is 1.234, at step 40"."""
        assert self.selection is not None
        if self.value is None:
            return f"no {self.selection.metric} was finite"
        return f"the best {self.selection.metric} is {self.value:.4g}, at step {self.step:,}"


def selected_step(
    records: Iterable[Mapping[str, Any]], start: Mapping[str, Any], last_step: int
) -> dict[str, Any] | None:
    """The best evaluation of a run that selects one: {"metric", "mode", "step", "value", "ended_early"}, the last of
    which is the reason why the run ended early with `last_step`, if it did. start: the last one of the run."""
    if start.get("selection") is None:
        return None
    selection = BestMetric(**start["selection"])
    best = Best.of_records(records, selection, last_step)
    facts = {"metric": selection.metric, "mode": selection.mode, "step": best.step, "value": best.value}
    return facts | {"ended_early": best.early_end(last_step, start["total_steps"])}


def validation_names(tasks: Iterable[str]) -> list[str]:
    """The names of all measures of a validation that can be BEST_METRIC. tasks: those of a mixture."""
    prefixes = [VALIDATION, *(f"{VALIDATION}/{task}" for task in tasks)]
    return [f"{prefix}/{name}" for prefix in prefixes for name in MEASURES]


def values_of(record: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers of a line of metrics.jsonl, by their names; empty for a line that is not an evaluation."""
    split, task = record.get("split"), record.get("task")
    if split == VALIDATION:
        prefix = VALIDATION if task is None else f"{VALIDATION}/{task}"
        return {f"{prefix}/{name}": _finite(record[name]) for name in MEASURES if name in record}
    if split == INFER_EVAL:
        numbers = {name: one for name, one in record["metrics"].items() if one is None or isinstance(one, int | float)}
        return {f"{task}/{name}": _finite(value) for name, value in numbers.items()}
    return {}


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
