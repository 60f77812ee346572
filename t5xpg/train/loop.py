"""The loop of a training run: updates, and after them evaluations, metrics of tasks and checkpoints."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5xpg.base import malloc, phases
from t5xpg.base.paths import shown
from t5xpg.data.stream.client import BatchStream
from t5xpg.distributed.group import Stop
from t5xpg.evaluate.measurements import Measurements
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.model import Params
from t5xpg.optim.state import TrainState
from t5xpg.run.best import Best, Values, values_of
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.metrics import Window, format_line
from t5xpg.train import nonfinite
from t5xpg.train.profile import Update
from t5xpg.train.progress_line import ProgressLine
from t5xpg.train.run_records import RunRecords


@dataclass
class RunState:
    """What a checkpoint holds after `step` updates, besides the position in the data; nothing else changes in a run.

    best: follows from metrics.jsonl. window: of the metrics of updates that are not reported yet. skipped: the number
    of updates that were skipped because they were not finite. measured: the values measured after exactly this step, by
    the names of `best.values_of`.
    """

    step: int
    train: TrainState
    best: Best
    window: Window = field(default_factory=Window)
    skipped: int = 0
    measured: Values = field(default_factory=dict)

    def measure(self, step: int, records: Iterable[Mapping[str, Any]]) -> Values:
        """Add the records of an evaluation after `step`, as in metrics.jsonl; returns their numbers by name."""
        values: Values = {}
        for record in records:
            numbers = values_of(record)
            self.best.add(step, numbers)
            values = {**values, **numbers}
        if step == self.step:
            self.measured = {**self.measured, **values}
        return values


@dataclass(frozen=True)
class TrainingRun:
    """The fixed parts of a run in one process, made when the run is opened. What changes is in a `RunState` and in the
    position of the stream.

    stream: the batches, of which this process reads its own rows. position: returns the position in the data of all
    processes. place: puts a batch on the devices. train_step: (state, batch on devices) -> (state, metrics).
    model_params: the parameters of a state that the model is measured with. meta: the facts of the run in checkpoints.
    first_update: set after the first update; measuring is prepared only then, so that the update comes sooner.
    """

    experiment: Experiment
    stream: BatchStream
    position: Callable[[], dict[str, np.ndarray]]
    place: Callable[[Mapping[str, Any]], dict[str, jax.Array]]
    train_step: Update
    model_params: Callable[[TrainState], Params]
    measurements: Measurements
    checkpointer: Checkpointer
    records: RunRecords
    progress: ProgressLine
    meta: Mapping[str, Any]
    first_update: threading.Event


def loop(run: TrainingRun, state: RunState, stop: Stop, end: int) -> None:
    """Update `state` until the step `end`, or until `stop` requests an end; then the state has been saved.

    The metrics of an update are read one update late, so that the device never waits for the host. After an update
    follow the evaluation, the metrics of the tasks and the checkpoint that are due; after the last update, all of them.
    An evaluation can make its update the last one (EARLY_STOP_PATIENCE).
    """
    pending_metrics: Any = None  # the metrics of the last update

    def count_pending() -> None:
        nonlocal pending_metrics
        if pending_metrics is not None:
            _count(run, state, jax.device_get(pending_metrics))
            pending_metrics = None

    with run.progress:
        if state.step == 0 and run.first_update.is_set():
            evaluate(run, state, 0, run.model_params(state.train))
        ended = False
        while state.step < end and not ended:
            phases.begin("step", state.step + 1)
            batch = next(run.stream)
            run.records.trail.add(batch)
            is_measured = run.first_update.is_set()
            initial_params = None if is_measured else jax.tree.map(jnp.copy, run.model_params(state.train))
            train, metrics = run.train_step(state.train, run.place(batch))
            count_pending()
            state.train, state.step, state.measured = train, state.step + 1, {}
            pending_metrics = metrics
            # a user waits for the first update, and measuring takes as long as many updates
            if initial_params is not None:
                jax.block_until_ready(metrics)
                run.first_update.set()
                evaluate(run, state, 0, initial_params)
            ended = _after_update(run, state, stop, end, count_pending)


def _after_update(run: TrainingRun, state: RunState, stop: Stop, end: int, count_pending: Callable[[], None]) -> bool:
    """Evaluate, measure predictions and save, as far as they are due after the update `state.step`; returns True if it
    was the last one. count_pending: reads the metrics of the update."""
    experiment, step, period = run.experiment, state.step, run.experiment.infer_eval_period
    last = step == experiment.total_steps
    stopping = stop.reached(step)
    evaluating = last or step % experiment.eval_period == 0
    predicting = period is not None and (last or step % period == 0)
    saving = last or step % experiment.checkpoints.period == 0
    if not (evaluating or predicting or saving or stopping or step == end):
        return False
    count_pending()
    if evaluating:
        evaluate(run, state, step, run.model_params(state.train))
    if predicting:
        predict(run, state)
    if state.best.ends(step) and not last:
        last = True
        if not evaluating:
            evaluate(run, state, step, run.model_params(state.train))
        if period is not None and not predicting:
            predict(run, state)
        if state.window.steps:
            _report(run, state)
    saving = saving or last or state.best.to_keep(step)
    if saving or stopping or step == end:
        save(run, state, resume_only=not saving)
    return stopping or last


def _count(run: TrainingRun, state: RunState, metrics: Mapping[str, Any]) -> None:
    """Add the metrics of the update `state.step` to the window, and report a window that is complete.

    An update that is not finite has changed nothing and is left out. Raises UserError if there were too many of them.
    """
    phases.end("step", state.step)
    problem = nonfinite.find(state.step, metrics, state.train.params)
    if problem is None:
        state.window.add(metrics)
        run.progress.updated(metrics, run.records.trail.batch_of(state.step))
    else:
        _skip_update(run, state, problem, metrics)
    if state.step % run.experiment.stats_period == 0 or state.step == run.experiment.total_steps:
        _report(run, state)


def _skip_update(run: TrainingRun, state: RunState, problem: nonfinite.NonFinite, metrics: Mapping[str, Any]) -> None:
    """Keep the batch of an update that is not finite; raise UserError if there were too many of them."""
    folder, allowed = shown(run.records.keep_nonfinite(problem, metrics)), run.experiment.skip_nonfinite
    if state.skipped >= allowed:
        raise nonfinite.too_many(problem, allowed, folder, type(run.experiment.optimizer).__name__)
    state.skipped += 1
    run.records.skipped(problem)
    run.progress.updated(None, run.records.trail.batch_of(state.step))
    run.progress.print(
        f"{problem} ({problem.where()}): skipped, {state.skipped} of {allowed}; its batch lies in {folder}"
    )


def _report(run: TrainingRun, state: RunState) -> None:
    """Record the means of the window that ends here, and begin another."""
    run.records.training(state.step, state.window, run.progress.report(state.window))
    state.window = Window()


def evaluate(run: TrainingRun, state: RunState, step: int, params: Params) -> None:
    """Measure the validation split with the parameters after `step` updates, and every task of a mixture by itself."""
    with run.progress.paused(), phases.phase("evaluate", step):
        summary = run.measurements.loss(params)
        by_task = run.measurements.loss_by_task(params)
    malloc.release_unused()
    values = state.measure(step, run.records.validation(step, summary, by_task))
    selection = run.experiment.selection
    if selection is not None and selection.of_validation:
        selection.require(values)
    run.progress.validated(summary)
    run.progress.print(f"step {step:,}: validation {format_line(summary)}")
    if by_task:
        losses = ", ".join(f"{task} {measured['loss']:.3f}" for task, measured in by_task.items())
        run.progress.print(f"step {step:,}: validation loss by task: {losses}")


def predict(run: TrainingRun, state: RunState) -> None:
    """Measure the metrics of the tasks on the state's predictions."""
    began = time.perf_counter()
    with run.progress.paused(), phases.phase("evaluate", state.step):
        measured = run.measurements.metrics(run.model_params(state.train), state.step)
    malloc.release_unused()
    seconds = time.perf_counter() - began
    values = state.measure(state.step, run.records.task_metrics(state.step, measured, seconds))
    selection = run.experiment.selection
    if selection is not None and not selection.of_validation:
        selection.require(values)
    run.progress.predicted(seconds)
    for task_metrics in measured:
        run.progress.print(f"step {state.step:,}: {task_metrics}")


def save(run: TrainingRun, state: RunState, *, resume_only: bool) -> None:
    """Write a checkpoint in the background. resume_only: it only serves to resume, as the process ends here.

    Raises UserError if a parameter is not finite: an update can overflow though its gradient did not.
    """
    with run.progress.paused():
        nonfinite.require_finite(state.train.params, state.step)
        run.records.trail.flush()
        metrics = {name: math.nan if value is None else value for name, value in state.measured.items()}
        meta = {**run.meta, "window": asdict(state.window), "skipped": state.skipped}
        run.checkpointer.save(state.step, state.train, run.position(), meta, metrics, resume_only=resume_only)
