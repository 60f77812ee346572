"""When a training updates, reports, evaluates and saves; and that what goes on is what was saved."""

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import pytest

from t5xpg.optim.state import TrainState
from t5xpg.run.best import Best, BestMetric
from t5xpg.run.metrics import Window
from t5xpg.train.loop import RunState, TrainingRun, loop
from tests.refusals import refused

TOTAL = 7


@functools.partial(jax.jit, donate_argnums=0)
def update(state: TrainState, batch: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
    """The parameter becomes the sum of the batches, which are the numbers of the updates."""
    metrics = {"cross_entropy": batch, "weights": batch, "correct": batch}
    return TrainState(state.step + 1, {"w": state.params["w"] + batch}, ()), metrics


@dataclass
class Noted:
    """Stands for all that a loop calls besides the update, and notes the calls in their order."""

    losses: Mapping[float, float] = field(default_factory=dict)  # of the validation, by the value of the parameter
    not_finite: tuple[int, ...] = ()  # batches
    events: list[tuple[Any, ...]] = field(default_factory=list)
    saved: dict[int, tuple[float, dict[str, Any], bool]] = field(default_factory=dict)

    def loss(self, params: Any) -> dict[str, float]:
        value = float(params["w"]) if "w" in params else 0.0
        self.events.append(("measure", value))
        nothing = dict.fromkeys(("accuracy", "target_bytes", "nats_per_byte", "bits_per_byte"), 0.0)
        return {"loss": self.losses.get(value, 1.0), **nothing}

    def metrics(self, params: Any, step: int) -> list[Any]:
        self.events.append(("predict", step, float(params["w"])))
        return []

    def validation(self, step: int, summary: Mapping[str, Any], by_task: Any) -> list[dict[str, Any]]:
        self.events.append(("validation", step))
        return [{"step": step, "split": "validation", **summary}]

    def save(self, step: int, state: TrainState, position: Any, meta: Any, metrics: Any, *, resume_only: bool) -> None:
        value = float(state.params.get("w", 0.0))
        self.saved[step] = (value, meta["window"], resume_only)
        self.events.append(("save", step, value))

    def train(
        self,
        *,
        step: int = 0,
        window: Window | None = None,
        until: int = TOTAL,
        stop_after: int | None = None,
        measure_first: bool = False,
        **settings: Any,
    ) -> RunState:
        """Run from `step` on. measure_first: the state before the first update is measured before it."""
        params = {"w": jnp.float32(sum(range(step + 1)))}
        best = Best(settings.get("selection"))
        at = RunState(step, TrainState(jnp.int32(step), params, ()), best, window or Window())
        options = {"stop_after": stop_after, "measured": bool(step) or measure_first}
        self.loop(at, self.batches(step), lambda batch: batch, update, until, **options, **settings)
        return at

    def loop(
        self,
        at: RunState,
        stream: Iterator[Any],
        place: Callable[[Any], Any],
        train_step: Callable[..., Any],
        until: int,
        *,
        stop_after: int | None = None,
        measured: bool = False,
        **settings: Any,
    ) -> None:
        """`loop` with nothing real but the arguments."""
        periods = {"stats_period": 3, "eval_period": 4, "infer_eval_period": None}
        experiment = SimpleNamespace(
            **{"total_steps": TOTAL, "selection": None, "skip_nonfinite": 0, "optimizer": None, **periods, **settings},
            checkpoints=SimpleNamespace(period=2),
        )
        first_update = threading.Event()
        if measured:
            first_update.set()

        def note_window(step: int, window: Window, timing: Any) -> None:
            self.events.append(("window", step, window.steps, window.values.get("weights", 0.0)))

        stands_for: dict[str, Any] = {
            "experiment": experiment,
            "model_params": lambda state: state.eval_params,
            "measurements": SimpleNamespace(loss=self.loss, loss_by_task=lambda _: {}, metrics=self.metrics),
            "checkpointer": self,
            "records": MagicMock(
                training=note_window,
                validation=self.validation,
                task_metrics=lambda *_: [],
                keep_nonfinite=lambda *_: Path("kept"),
                skipped=lambda found: self.events.append(("skipped", found.step)),
            ),
            "progress": MagicMock(updated=lambda *_: self.events.append(("update",))),
        }
        run = TrainingRun(
            stream=stream,  # type: ignore[arg-type]
            position=dict, place=place, train_step=train_step, meta={}, first_update=first_update, **stands_for,
        )  # fmt: skip
        stop: Any = SimpleNamespace(reached=lambda step: step == stop_after, number=None)
        loop(run, at, stop, until)

    def batches(self, step: int) -> Iterator[Any]:
        for number in itertools.count(step + 1):
            yield jnp.float32(jnp.nan if number in self.not_finite else number)


def value(at: RunState) -> float:
    return float(at.train.params["w"])


def test_order_of_events() -> None:
    noted = Noted()
    at = noted.train(measure_first=True)
    assert (at.step, value(at)) == (7, 28)
    assert noted.events == [
        ("measure", 0), ("validation", 0),
        ("update",), ("update",), ("save", 2, 3),
        ("update",), ("window", 3, 3, 6), ("update",), ("measure", 10), ("validation", 4), ("save", 4, 10),
        ("update",), ("update",), ("window", 6, 3, 15), ("save", 6, 21),
        ("update",), ("window", 7, 1, 7), ("measure", 28), ("validation", 7), ("save", 7, 28),
    ]  # fmt: skip
    # a user waits for the first update: the state before it is measured behind it, and what is recorded is the same
    behind = Noted()
    behind.train()
    assert behind.events == noted.events


def test_metrics_of_tasks_have_a_period_of_their_own_and_change_nothing() -> None:
    without, noted = Noted(), Noted()
    without.train()
    noted.train(infer_eval_period=3)
    predicted = [event for event in noted.events if event[0] == "predict"]
    assert predicted == [("predict", 3, 6), ("predict", 6, 21), ("predict", 7, 28)]
    # behind the loss and before the checkpoint, which may keep it
    assert [event[0] for event in noted.events[-3:]] == ["validation", "predict", "save"]
    assert [event for event in noted.events if event not in predicted] == without.events
    assert noted.saved == without.saved


@pytest.mark.parametrize(("stop_after", "until"), [(5, TOTAL), (None, 5)])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(stop_after: int | None, until: int) -> None:
    whole, first, second = Noted(), Noted(), Noted()
    whole.train()
    at = first.train(stop_after=stop_after, until=until)
    assert (at.step, value(at)) == (5, 15)
    saved, window, resume_only = first.saved[5]
    assert (saved, window["steps"], window["values"]["weights"]) == (15, 2, 9.0)
    assert resume_only, "an unbroken run would not have kept it"
    second.train(step=5, window=Window(**window))
    # the save at the stop is no part of the run
    assert [event for event in first.events + second.events if event[:2] != ("save", 5)] == whole.events


def test_the_best_evaluation_is_saved_out_of_its_turn() -> None:
    noted = Noted(losses={6.0: 0.5})  # after the third update
    noted.train(selection=BestMetric(), eval_period=3)
    assert list(noted.saved) == [2, 3, 4, 6, 7]
    assert not any(resume_only for _, _, resume_only in noted.saved.values())


def test_a_run_that_ends_early_ends_as_at_its_last_step() -> None:
    noted = Noted(losses={10.0: 2.0})
    selection = BestMetric("validation/loss", patience=1)
    at = noted.train(step=3, selection=selection, infer_eval_period=3)
    assert (at.step, at.best.step) == (7, 7), "nothing was better before: the first evaluation is the best"
    noted = Noted(losses={10.0: float("nan")})
    at = noted.train(step=3, selection=selection, infer_eval_period=3)
    assert at.step == 4
    assert [event[0] for event in noted.events[-5:]] == ["measure", "validation", "predict", "window", "save"]
    assert noted.saved[4][1] == {"steps": 0, "values": {}}


def test_updates_that_are_not_finite_do_not_count() -> None:
    noted = Noted(not_finite=(2, 4))
    with refused("step 2", "LEARNING_RATE"):
        noted.train()
    noted = Noted(not_finite=(2,))
    with refused("step 2", "w"):
        noted.train(skip_nonfinite=1)  # this update changes nothing of what is not finite: its parameters are lost
    assert ("skipped", 2) in noted.events
