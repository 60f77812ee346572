"""The loop of a training run: updates, and behind them evaluations, predictions and checkpoints."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from t5xpg.base import malloc, phases
from t5xpg.base.paths import shown
from t5xpg.data.stream.client import BatchStream
from t5xpg.distributed.group import Stop
from t5xpg.evaluate.measurements import Measurements
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.model import Params
from t5xpg.optim.state import TrainState
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.metrics import Window, format_line
from t5xpg.train import nonfinite
from t5xpg.train.profile import Update
from t5xpg.train.progress_line import ProgressLine
from t5xpg.train.run_records import RunRecords
from t5xpg.train.run_state import Position, RunState


@dataclass(frozen=True)
class Run:
    """What one process trains with; made once, when the run is opened. What changes is in a `RunState` and in the
    position of the stream.

    stream: the batches, of which this process reads its own rows. position: returns the position in the data of all
    processes. place: puts a batch on the devices. train_step: (state, batch on devices) -> (state, metrics). weights:
    the parameters of a state that are measured. meta: what checkpoints record about the run. first_update: set after
    the first update; what measuring needs is made only then, so that the first update comes sooner.
    """

    experiment: Experiment
    stream: BatchStream
    position: Callable[[], Position]
    place: Callable[[Mapping[str, Any]], dict[str, jax.Array]]
    train_step: Update
    weights: Callable[[TrainState], Params]
    measurements: Measurements
    checkpointer: Checkpointer
    records: RunRecords
    progress: ProgressLine
    meta: Mapping[str, Any]
    first_update: threading.Event


def loop(run: Run, at: RunState, stop: Stop, end: int) -> None:
    """Update `at` until the step `end`, or until `stop` asks for an end; then the state has been saved.

    The metrics of an update are read one update late, so that the device never waits for the host. After an update
    follow the evaluation, the metrics of the tasks and the checkpoint that are due; after the last update, all of them.
    An evaluation can make its update the last one (EARLY_STOP_PATIENCE).
    """
    experiment, progress = run.experiment, run.progress
    unread: Any = None  # the metrics of the last update

    def read() -> None:
        nonlocal unread
        if unread is not None:
            _count(run, at, jax.device_get(unread))
            unread = None

    with progress:
        if at.step == 0 and run.first_update.is_set():
            evaluate(run, at, 0, run.weights(at.train))
        while at.step < end:
            phases.begin("step", at.step + 1)
            batch = next(run.stream)
            run.records.trail.add(batch)
            late = None if run.first_update.is_set() else jax.tree.map(jnp.copy, run.weights(at.train))
            train, metrics = run.train_step(at.train, run.place(batch))
            read()
            at.advance(train)
            unread = metrics
            if late is not None:  # a user waits for the first update, and measuring takes as long as many updates
                jax.block_until_ready(metrics)
                run.first_update.set()
                evaluate(run, at, 0, late)
            step, last = at.step, at.step == experiment.total_steps
            stopping = stop.reached(step)
            evaluating = last or step % experiment.eval_period == 0
            period = experiment.infer_eval_period
            predicting = period is not None and (last or step % period == 0)
            saving = last or step % experiment.checkpoints.period == 0
            if evaluating or predicting or saving or stopping or step == end:
                read()
                if evaluating:
                    evaluate(run, at, step, run.weights(at.train))
                if predicting:
                    predict(run, at)
                if at.best.ends(step) and not last:
                    last = True
                    if not evaluating:
                        evaluate(run, at, step, run.weights(at.train))
                    if period is not None and not predicting:
                        predict(run, at)
                    if at.window.steps:
                        _report(run, at)
                saving = saving or last or at.best.to_keep(step)
                if saving or stopping or step == end:
                    save(run, at, passing=not saving)
            if stopping or last:
                break


def _count(run: Run, at: RunState, metrics: Mapping[str, Any]) -> None:
    """Add the metrics of the update `at.step` to the window, and report a window that is complete.

    An update that is not finite has changed nothing and is left out. Raises UserError where too many of them came.
    """
    phases.end("step", at.step)
    found = nonfinite.find(at.step, metrics, at.train.params)
    if found is None:
        at.window.add(metrics)
        run.progress.updated(metrics, run.records.trail.batch_of(at.step))
    else:
        _pass_over(run, at, found, metrics)
    if at.step % run.experiment.stats_period == 0 or at.step == run.experiment.total_steps:
        _report(run, at)


def _pass_over(run: Run, at: RunState, found: nonfinite.NonFinite, metrics: Mapping[str, Any]) -> None:
    """Keep the batch of an update that is not finite; raise UserError if there were too many of them."""
    kept, allowed = shown(run.records.keep_nonfinite(found, metrics)), run.experiment.skip_nonfinite
    if at.skipped >= allowed:
        raise nonfinite.too_many(found, allowed, kept)
    at.skipped += 1
    run.records.skipped(found)
    run.progress.updated(None, run.records.trail.batch_of(at.step))
    run.progress.print(f"{found} ({found.where()}): skipped, {at.skipped} of {allowed}; its batch lies in {kept}")


def _report(run: Run, at: RunState) -> None:
    """Record the means of the window that ends here, and begin another."""
    run.records.training(at.step, at.window, run.progress.report(at.window))
    at.window = Window()


def evaluate(run: Run, at: RunState, step: int, params: Params) -> None:
    """Measure the validation split with the parameters after `step` updates, and every task of a mixture by itself."""
    with run.progress.paused(), phases.phase("evaluate", step):
        summary = run.measurements.loss(params)
        by_task = run.measurements.loss_by_task(params)
    malloc.release_unused()
    values = at.measure(step, run.records.validation(step, summary, by_task))
    selection = run.experiment.selection
    if selection is not None and selection.of_validation:
        selection.require(values)
    run.progress.validated(summary)
    run.progress.print(f"step {step:,}: validation {format_line(summary)}")
    if by_task:
        losses = ", ".join(f"{task} {measured['loss']:.3f}" for task, measured in by_task.items())
        run.progress.print(f"step {step:,}: validation loss by task: {losses}")


def predict(run: Run, at: RunState) -> None:
    """Measure what the state predicts, with the metrics of the tasks."""
    began = time.perf_counter()
    with run.progress.paused(), phases.phase("evaluate", at.step):
        measured = run.measurements.metrics(run.weights(at.train), at.step)
    malloc.release_unused()
    seconds = time.perf_counter() - began
    values = at.measure(at.step, run.records.task_metrics(at.step, measured, seconds))
    selection = run.experiment.selection
    if selection is not None and not selection.of_validation:
        selection.require(values)
    run.progress.predicted(seconds)
    for one in measured:
        run.progress.print(f"step {at.step:,}: {one}")


def save(run: Run, at: RunState, *, passing: bool) -> None:
    """Write a checkpoint in the background. passing: whether it only serves to go on from, as the process ends here.

    Raises UserError where a parameter is not finite: an update can overflow though its gradient did not.
    """
    with run.progress.paused():
        nonfinite.require_finite(at.train.params, at.step)
        run.records.trail.flush()
        at.save(run.checkpointer, run.meta, run.position(), passing=passing)
