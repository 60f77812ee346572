"""Which evaluation is the best, when there have been enough, and that records alone say so."""

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from t5xpg.run.best import Best, BestMetric, validation_names, values_of
from tests.refusals import assert_named, refused

VALUES = st.lists(st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.just(math.nan), st.floats(-9, 9)), max_size=12)


def validation(step: int, loss: float | None) -> dict[str, Any]:
    return {"step": step, "split": "validation", "loss": loss, "accuracy": 0.5}


def state(best: Best) -> tuple[Any, ...]:
    return best.step, best.value, best.since


def of_values(values: list[float], selection: BestMetric) -> Best:
    best = Best(selection)
    for number, value in enumerate(values, start=1):
        best.add(number, values_of(validation(number, value)))
    return best


@given(VALUES)
def test_the_best_is_the_first_of_the_lowest(values: list[float]) -> None:
    best = of_values(values, BestMetric())
    finite = [value for value in values if not math.isnan(value)]
    if not finite:
        assert state(best) == (None, None, len(values))
        return
    first = next(number for number, value in enumerate(values, start=1) if value == min(finite))
    assert state(best) == (first, min(finite), len(values) - first)


@given(VALUES, st.integers(0, 12), st.integers(1, 3))
def test_a_run_that_goes_on_is_where_the_unbroken_one_was(values: list[float], reached: int, patience: int) -> None:
    selection = BestMetric(patience=patience)
    # as metrics.jsonl has them, of a process that was killed after `reached` and had got further
    lines = [
        json.dumps(validation(step, None if math.isnan(value) else value)) for step, value in enumerate(values, start=1)
    ]
    again = Best.of_records([json.loads(line) for line in lines], selection, reached)
    unbroken = of_values(values[:reached], selection)
    assert state(again) == state(unbroken)
    assert [again.ends(step) for step in range(14)] == [unbroken.ends(step) for step in range(14)]


def test_patience_ends_a_run_at_the_evaluation_that_was_the_last_straw() -> None:
    best = Best(BestMetric(patience=2))
    ends = []
    for step, loss in ((0, 0.1), (3, 2.0), (6, 1.0), (9, 1.0), (12, math.nan)):
        best.add(step, values_of(validation(step, loss)))
        ends.append((best.to_keep(step), best.ends(step)))
    assert ends == [(False, False), (True, False), (True, False), (False, False), (False, True)]
    assert not best.ends(13), "nothing was measured there"
    assert [best.early_end(step, total) for step, total in ((12, 12), (13, 20))] == [None, None]
    assert_named(
        best.early_end(12, 20) or "", ["for 2 evaluations (EARLY_STOP_PATIENCE)", "validation/loss is 1, at step 6"]
    )


def test_the_metric_of_a_task_of_which_more_is_better() -> None:
    best = Best(BestMetric("squad/em", "max", keep=False))
    for step, em in ((2, 10), (4, None), (6, 30.0)):
        record = {"step": step, "split": "infer_eval", "task": "squad", "metrics": {"em": em, "said": "a text"}}
        assert "squad/said" not in values_of(record)
        best.add(step, values_of(record))
        best.add(step, values_of(validation(step, 0.0)))
    assert state(best) == (6, 30.0, 0)
    assert not best.to_keep(6), "KEEP_BEST is False"


def test_names_of_what_is_measured() -> None:
    assert values_of({"step": 1, "split": "train", "loss": 1.0}) == {}
    assert set(values_of({**validation(1, 1.0), "task": "a"})) == {"validation/a/loss", "validation/a/accuracy"}
    assert set(values_of(validation(1, 1.0))) <= set(validation_names([]))
    assert "validation/a/nats_per_byte" in validation_names(["a"])


def test_values_that_cannot_be() -> None:
    options: dict[str, Any]
    for options, *named in (
        ({"metric": "loss"}, "BEST_METRIC is 'loss'", "validation/loss"),
        ({"metric": "validation/los"}, "BEST_METRIC is 'validation/los'", "Did you mean validation/loss"),
        ({"mode": "lowest"}, "BEST_MODE is 'lowest'", "'min' or 'max'"),
        ({"mode": "max"}, "BEST_MODE is 'max'", "validation/loss is min"),
        ({"metric": "squad/em"}, "BEST_MODE", "squad/em"),
        ({"patience": 0}, "EARLY_STOP_PATIENCE is 0", "at least 1"),
    ):
        with refused(*named):
            BestMetric(**options)
    with refused("'squad/ex'", "Did you mean squad/em"):
        BestMetric("squad/ex", "max").require(["squad/em", "squad/f1"])
