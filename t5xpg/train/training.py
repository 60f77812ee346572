"""A training run, from top to bottom: check, prepare, open, loop, finish."""

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from t5xpg.base import environment, malloc, phases, stores
from t5xpg.base.background import in_background
from t5xpg.base.errors import UserError
from t5xpg.base.paths import shown
from t5xpg.base.progress import duration
from t5xpg.base.signals import NothingToSave, StopRequest
from t5xpg.base.stores import SupersededError
from t5xpg.data.recording.reader import RecordedData
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.distributed import ALONE, Group
from t5xpg.distributed.data_position import shared_position
from t5xpg.evaluate.measurements import measurements, require_metrics, require_selection
from t5xpg.evaluate.trained_model import ADAPTER, INITIAL, TEACHER, frozen_parameters
from t5xpg.experiment import assembly, prepare
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.config import LoadedConfig, settings
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.identity import data_config, run_identity
from t5xpg.run.batch_trail import BatchTrail, Shares
from t5xpg.run.best import Best
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.directory import RunDirectory, SharedRunDirectory
from t5xpg.run.records import read_jsonl
from t5xpg.train import compile_cache, initial_state
from t5xpg.train.loop import Run, loop
from t5xpg.train.profile import Update, profiled_updates
from t5xpg.train.progress_line import ProgressLine
from t5xpg.train.run_records import RunRecords
from t5xpg.train.run_state import RunState
from t5xpg.train.start import (
    Start,
    check_fits,
    print_data,
    print_header,
    record_start,
    require_same,
    require_same_start,
    started_run,
)


def train(
    loaded: LoadedConfig,
    path: Path,
    *,
    until: int | None = None,
    recorded: Path | None = None,
    profiled: bool = False,
    group: Group = ALONE,
    command: str | None = None,
) -> int:
    """Train `loaded` in the run directory `path`, or continue there; returns the exit code.

    until: pause after this update and save, as after a request to stop. recorded: the folder of a recording to take the
    batches from (`make record`), without TensorFlow. profiled: trace some updates (`profile`). group: the processes
    that train together; each makes this call. command: what run.json records; None for that of this process.
    The exit code is 0 at the end, or 128 + n where signal n asked to stop: the update under way, if any, was finished
    and saved. Raises UserError for what the user can mend.
    """
    experiment = loaded.experiment
    end = experiment.total_steps if until is None else min(until, experiment.total_steps)
    directory = RunDirectory(path) if group.first else SharedRunDirectory(path, group.process)
    with (
        directory.lock() if group.first else contextlib.nullcontext(),
        stores.training(path if group.first else None) as uploads,
    ):
        group.barrier("store")
        with contextlib.ExitStack() as stack:
            # Prepare: the text, vocabulary and cache that the run reads, or a recording of its batches.
            recording = None if recorded is None else stack.enter_context(_recording(recorded, experiment, end))
            source = _prepare_data(experiment, group) if recording is None else prepare.DataIdentity(**recording.source)

            # Check: the directory is new, or holds this very run; all processes were given the same.
            identity = run_identity(experiment, source)
            directory.check(loaded.name, identity)
            require_same(group, experiment, identity)

            # Open: from here on an interruption is a request; before, it ends an export or a caching at once.
            request = stack.enter_context(StopRequest())
            checkpointer = stack.enter_context(
                Checkpointer(directory.checkpoints, experiment.checkpoints, group=group, committed=uploads.push_soon)
            )
            step = reached = checkpointer.latest() or 0
            stop = group.follow(request, step)
            records = read_jsonl(directory.metrics_jsonl) if experiment.selection is not None else []
            best = Best.of_records(records, experiment.selection, step)
            if step >= end or best.ends(step):
                checkpointer.tidy()
                reason = best.early_end(step, experiment.total_steps)
                early = f"; it ended early: {reason}" if reason else ""
                print(f"{loaded.name}: already trained for {step:,} steps, in {shown(path)}{early}")
                return 0
            if not step:
                require_same_start(group, experiment)
            uploads.begin()
            service = recording or stack.enter_context(DataService(log=directory.data_log))
            command = command or environment.command_line()
            start = Start(loaded, directory, identity, source, checkpointer, service, group, step, command)
            with _adding_resume_hint(checkpointer), _open(start, best, profiled, request) as (run, state):
                with state.waiting_for_batches(run.stream, checkpointer, stop):
                    loop(run, state, stop, end)
                reached = checkpointer.latest() or 0
        if stop.number is not None and reached < end and not best.ends(reached):
            saved = f"after step {reached:,}, which is saved" if reached else "before the first step"
            print(f"stopped {saved}; the same command goes on from there", flush=True)
    return 0 if stop.number is None else 128 + stop.number


# --- prepare ---


@contextlib.contextmanager
def _recording(folder: Path, experiment: Experiment, end: int) -> Iterator[RecordedData]:
    """Open a recording. Raises UserError if it does not hold the experiment's batches up to the update `end`."""
    with RecordedData(folder) as recording:
        recording.require(end)
        for dataset in (experiment.train_dataset, experiment.eval_dataset):
            recording.describe(data_config(dataset, experiment.random_seed))
        yield recording


def _prepare_data(experiment: Experiment, group: Group) -> prepare.DataIdentity:
    """The identity of the data; makes what is missing. If processes share the folders, the first one makes it."""
    if group.first:
        identity = prepare.prepare_all(experiment.datasets, experiment.needs)
    group.barrier("data")
    return identity if group.first else prepare.prepare_all(experiment.datasets, experiment.needs)


# --- open ---


@contextlib.contextmanager
def _open(start: Start, best: Best, profiled: bool, request: StopRequest) -> Iterator[tuple[Run, RunState]]:
    """Print the run's header, open the data, compile, make or restore the state; close all at the end of the block.

    Until the run is open, a request to stop ends the block at once: everything needed is on disk. Several processes
    have to agree on a stop, which they do only after an update.
    """
    start_time, request.at_once = time.perf_counter(), start.group.count == 1
    if request.at_once and request.requested:  # while the checkpoint was read
        raise NothingToSave
    loaded, experiment, group, step = start.loaded, start.loaded.experiment, start.group, start.step
    built = assembly.assemble(experiment)
    print_header(loaded, built)
    first_update = threading.Event()
    if step or built.devices["platform"] != "cpu":
        first_update.set()  # the start, if it is measured, is measured before the first update
    with contextlib.ExitStack() as stack:
        # Processes wait for each other while they compile: all must compile, even where one has kept the program.
        program_cache = compile_cache.kept_programs() if group.count == 1 else contextlib.nullcontext(lambda: None)
        keep_programs = stack.enter_context(program_cache)

        futures = _begin_in_background(built, step, first_update, keep_programs)
        state_future, step_future, eval_step_future, thread_end = futures
        train_config = data_config(experiment.train_dataset, experiment.random_seed)
        eval_config = data_config(experiment.eval_dataset, experiment.random_seed)
        metrics_config = data_config(experiment.of_metrics.eval_dataset, experiment.random_seed)
        description = start.service.describe(train_config)
        if experiment.infer_eval_period is not None:
            require_metrics(start.service, metrics_config)
        if experiment.selection is not None:
            of_validation = experiment.selection.of_validation
            require_selection(start.service, eval_config if of_validation else metrics_config, experiment.selection)
        vocabulary = description.vocabulary
        token_bytes = built.token_bytes(vocabulary)
        origins = initial_state.origins_of_run(built, start.checkpointer, step, state_future.result, vocabulary)
        print_data(description, experiment)
        check_fits(start.service, experiment)
        record_start(start, built, vocabulary, origins)
        continues = f", continues after step {step:,}" if step else ""
        print(f"run: {shown(start.directory.path)}{continues}", flush=True)

        host_rows = built.rows_of_host(group.process)
        stream = start.service.open(train_config, shards=host_rows.shards)
        train_step = step_future.result()
        update: Update = lambda state, batch: train_step(state, batch, token_bytes)  # noqa: E731
        state = (
            _restore(start, built, best, origins, stream) if step else RunState(0, state_future.result().state, best)
        )
        progress = ProgressLine(built, stream, step)
        if profiled:
            update = stack.enter_context(profiled_updates(update, start.directory.profile, progress.print))
        logged_run, trail = started_run(start, built), _trail(start, built)
        records = stack.enter_context(
            RunRecords(start.directory, step, trail, experiment.loggers, logged_run, progress.print)
        )
        run = Run(
            experiment=experiment,
            stream=stream,
            position=lambda: shared_position(stream.state(), start.directory.hosts, group),
            place=functools.partial(host_rows.to_global_arrays, sharding=built.batch_sharding),
            train_step=update,
            model_params=lambda state: built.model_params(state.eval_params, state.frozen),
            measurements=measurements(
                built,
                start.service,
                eval_config,
                vocabulary,
                _evaluation_stream(start.service, eval_config, stream, first_update),
                lambda params, batch: eval_step_future.result()(params, batch, token_bytes),
            ),
            checkpointer=start.checkpointer,
            records=records,
            progress=progress,
            meta=_checkpoint_meta(loaded, vocabulary, origins),
            first_update=first_update,
        )
        print(f"ready {duration(time.perf_counter() - start_time)} after the start", flush=True)
        request.at_once = False
        yield run, state
        start.checkpointer.wait()
        if first_update.is_set():  # a run that is stopped before it has not compiled the evaluation
            thread_end.result()
        records.complete()
        progress.measure_peak(again=True)  # what is measured at a start, while TensorFlow loads, can be too low
    if reason := best.early_end(state.step, experiment.total_steps):
        print(f"ended after step {state.step:,}: {reason}", flush=True)
    elif experiment.selection is not None and state.step == experiment.total_steps:
        print(str(best), flush=True)


def _begin_in_background(
    built: Assembly, step: int, first_update: threading.Event, keep_programs: Callable[[], None]
) -> tuple[Future[Any], ...]:
    """The futures of a thread that works while the data process loads TensorFlow: the new state (None if one is
    restored), the compiled update, the compiled evaluation step, and the end of the thread."""

    def compile_eval_step() -> Any:
        keep_programs()
        first_update.wait()
        return built.compile_eval_step()

    initial, train_step, eval_step, _, thread_end = in_background(
        (lambda: initial_state.begin(built)) if step == 0 else lambda: None,
        functools.partial(_compile_train_step, built),
        compile_eval_step,
        keep_programs,
        malloc.release_unused,
    )
    return initial, train_step, eval_step, thread_end


def _compile_train_step(built: Assembly) -> Any:
    """The update, compiled before the loop, so that the first step of the progress bar is only a step."""
    with phases.phase("compile"):
        return built.compile_train_steps()


def _restore(start: Start, built: Assembly, best: Best, origins: Mapping[str, Any], stream: Any) -> RunState:
    """The state of the last checkpoint; also moves the stream to its position."""
    experiment = start.loaded.experiment
    state, position = RunState.restore(start.checkpointer, start.step, built.abstract_state, best)
    if experiment.frozen_model is not None:
        frozen = frozen_parameters(built, origins[INITIAL if experiment.teacher is None else TEACHER])
        state.train = dataclasses.replace(state.train, frozen=frozen)
    stream.restore(position)
    return state


def _checkpoint_meta(loaded: LoadedConfig, vocabulary: Vocabulary, origins: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the run in its checkpoints. origins: of the initial checkpoint and the teacher, if there are any."""
    adapter = loaded.experiment.adapter
    return {
        "experiment": loaded.name,
        "vocabulary": vocabulary.to_json(),
        "settings": settings(loaded.experiment.model),
        **origins,
        **({} if adapter is None else {ADAPTER: type(adapter).__name__}),
    }


def _evaluation_stream(
    service: DataService | RecordedData, config: DatasetConfig, stream: Any, first_update: threading.Event
) -> Callable[[], Any]:
    """A function that returns the stream to measure on. The data process opens the stream after the first update."""
    if not isinstance(service, DataService):
        open_stream = service.open(config)
        return lambda: open_stream

    def open_after_first_update() -> Any:
        stream.wait()
        first_update.wait()
        return service.open(config)

    return in_background(open_after_first_update)[0].result


def _trail(start: Start, built: Assembly) -> BatchTrail:
    group, num_shards = start.group, start.loaded.experiment.train_dataset.num_virtual_shards
    if group.count == 1:
        return BatchTrail(start.directory.batches, start.step, num_shards)
    shards_by_host = [built.rows_of_host(number).shards for number in range(group.count)]
    shares = Shares(shards_by_host, group.process, functools.partial(group.gather, "batches"))
    return BatchTrail(start.directory.batches if group.first else None, start.step, num_shards, shares)


@contextlib.contextmanager
def _adding_resume_hint(checkpointer: Checkpointer) -> Iterator[None]:
    """Add to the message of an error that ends a run the step that the run can resume from."""
    try:
        yield
    except SupersededError:
        raise
    except UserError as error:
        step = None
        with contextlib.suppress(UserError):  # the disk may be full
            step = checkpointer.latest_here()
        if step is None:
            raise
        hint = f"Step {step:,} is saved: once that is mended, the same command goes on from there."
        raise UserError(f"{error}\n{hint}") from error
