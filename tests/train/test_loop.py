"""When the loop steps, logs, evaluates and saves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from t5xpg.run.metrics import Window
from t5xpg.train import loop


class Recorder:
    """Notes what the loop tells, in order."""

    def __init__(self, skipped: tuple[int, ...] = (), verdicts: Mapping[int, loop.Verdict] | None = None) -> None:
        self.skipped = skipped
        self.verdicts = verdicts or {}
        self.passing: list[int] = []
        self.events: list[tuple[Any, ...]] = []
        self.saved: dict[int, tuple[int, dict[str, object]]] = {}

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> bool:
        self.events.append(("step", step))
        return step not in self.skipped

    def stats(self, step: int, window: Window, seconds: float, steps: int) -> None:
        self.events.append(("stats", step, window.steps, window.values.get("weights", 0.0), steps))

    def evaluate(self, step: int, state: Any) -> None:
        self.events.append(("evaluate", step, state))

    def infer_eval(self, step: int, state: Any) -> None:
        self.events.append(("infer_eval", step, state))

    def judge(self, step: int) -> loop.Verdict:
        return self.verdicts.get(step, loop.Verdict())

    def save(self, step: int, state: Any, window: Window, passing: bool) -> None:
        self.saved[step] = (state, window.to_json())
        self.passing += [step] if passing else []
        self.events.append(("save", step, state))


def run(
    recorder: Recorder,
    *,
    state: int = 0,
    step: int = 0,
    window: Window | None = None,
    stop_after: int | None = None,
    until: int | None = None,
    infer_eval_period: int | None = None,
) -> tuple[int, int]:
    stops = itertools.count(step + 1)
    return loop.run(
        state,
        step=step,
        window=window or Window(),
        schedule=loop.Schedule(
            total_steps=7,
            stats_period=3,
            eval_period=4,
            save_period=2,
            infer_eval_period=infer_eval_period,
            until=until,
        ),
        train_step=lambda state, batch: (state + batch, {"weights": batch}),
        batches=iter(range(step + 1, 100)),
        to_host=dict,
        observer=recorder,
        should_stop=lambda step: next(stops) == stop_after,
    )


def test_order_of_events() -> None:
    recorder = Recorder()
    assert run(recorder) == (28, 7)
    assert recorder.events == [
        ("step", 1),
        ("step", 2),
        ("save", 2, 3),
        ("step", 3),
        ("stats", 3, 3, 6.0, 3),
        ("step", 4),
        ("evaluate", 4, 10),
        ("save", 4, 10),
        ("step", 5),
        ("step", 6),
        ("stats", 6, 3, 15.0, 3),
        ("save", 6, 21),
        ("step", 7),
        ("stats", 7, 1, 7.0, 1),
        ("evaluate", 7, 28),
        ("save", 7, 28),
    ]


def test_metrics_of_tasks_have_a_period_of_their_own_and_change_nothing() -> None:
    without, recorder = Recorder(), Recorder()
    run(without)
    run(recorder, infer_eval_period=3)
    measured = [event for event in recorder.events if event[0] == "infer_eval"]
    assert measured == [("infer_eval", 3, 6), ("infer_eval", 6, 21), ("infer_eval", 7, 28)]
    # behind the loss and before the checkpoint, which may keep it
    assert [event[0] for event in recorder.events[-3:]] == ["evaluate", "infer_eval", "save"]
    assert [event for event in recorder.events if event not in measured] == without.events
    assert recorder.saved == without.saved


def test_a_request_to_stop_finishes_the_step_and_saves_it() -> None:
    recorder = Recorder()
    assert run(recorder, stop_after=5) == (15, 5)
    assert recorder.events[-2:] == [("step", 5), ("save", 5, 15)]
    assert recorder.saved[5][1] == {"steps": 2, "values": {"weights": 9.0}}
    assert recorder.passing == [5], "an unbroken run would not have kept it"
    recorder = Recorder()
    run(recorder, stop_after=4)
    assert recorder.passing == [], "it has its turn at this step"


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been() -> None:
    whole, first, second = Recorder(), Recorder(), Recorder()
    run(whole)
    run(first, stop_after=5)
    state, window = first.saved[5]
    run(second, state=state, step=5, window=Window.from_json(window))

    def determined(recorder: Recorder) -> list[tuple[Any, ...]]:
        # Neither the number of steps that this process timed nor the save at the stop belongs to the run itself.
        events = [event[:4] if event[0] == "stats" else event for event in recorder.events]
        return [event for event in events if event[:2] != ("save", 5)]

    assert determined(first) + determined(second) == determined(whole)


def test_the_clock_counts_only_between_start_and_stop() -> None:
    times = iter([10.0, 12.0, 50.0, 53.0, 53.0])
    clock = loop.Clock(now=lambda: next(times))
    clock.start()
    clock.stop()
    clock.start()
    clock.steps = 4
    assert clock.lap() == (5.0, 4)
    assert (clock.seconds, clock.steps) == (0.0, 0)


def test_a_pause_is_saved_and_changes_nothing_that_comes_after_it() -> None:
    whole = Recorder()
    run(whole)
    first = Recorder()
    state, step = run(first, until=5)
    assert (state, step) == (15, 5)
    assert first.events[-2:] == [("step", 5), ("save", 5, 15)]
    saved_state, window = first.saved[5]
    second = Recorder()
    run(second, state=saved_state, step=5, window=Window.from_json(window))
    pauses = [event for event in (*first.events, *second.events) if event not in (("save", 5, 15),)]
    # how many updates a process counts towards its own speed is no part of the run
    assert [event[:4] for event in pauses] == [event[:4] for event in whole.events]


def test_a_step_that_is_the_best_is_saved_out_of_its_turn() -> None:
    recorder = Recorder(verdicts={3: loop.Verdict(save=True), 5: loop.Verdict(save=True)})
    run(recorder, infer_eval_period=3)
    assert list(recorder.saved) == [2, 3, 4, 6, 7], "nothing is judged at 5: nothing was measured"
    assert recorder.passing == []


def test_a_run_that_ends_early_ends_as_at_its_last_step() -> None:
    """But for the order of its last records, as it does not know before the evaluation that it is the last."""
    early = Recorder(verdicts={4: loop.Verdict(end=True)})
    assert run(early, infer_eval_period=3) == (10, 4)
    assert early.events[-4:] == [("evaluate", 4, 10), ("infer_eval", 4, 10), ("stats", 4, 1, 4.0, 1), ("save", 4, 10)]
    assert early.saved[4][1] == {"steps": 0, "values": {}}
    assert early.passing == []
    # by the metrics of a task: the loss is measured, too
    early = Recorder(verdicts={3: loop.Verdict(end=True)})
    assert run(early, infer_eval_period=3) == (6, 3)
    assert [event[:2] for event in early.events[-4:]] == [("stats", 3), ("infer_eval", 3), ("evaluate", 3), ("save", 3)]
    # at what is the last step anyway, nothing comes twice
    whole, last = Recorder(), Recorder(verdicts={7: loop.Verdict(end=True)})
    assert run(last) == run(whole)
    assert last.events == whole.events


def test_updates_that_were_skipped_do_not_count() -> None:
    recorder = Recorder(skipped=(2, 4, 5, 6))
    assert run(recorder) == (28, 7)
    assert [event[:4] for event in recorder.events if event[0] == "stats" and event[2]] == [
        ("stats", 3, 2, 4.0),
        ("stats", 7, 1, 7.0),
    ]
