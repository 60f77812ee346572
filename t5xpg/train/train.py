"""A training run, from top to bottom: prepare, check, open, loop, finish.

State, in a checkpoint: parameters and optimiser, the window of metrics, the count of skipped updates, and the position
in the data. All else follows from the experiment, or from metrics.jsonl (the best evaluation). Saved: every
CHECKPOINT_PERIOD updates, at the best evaluation, at the end, and where the run is stopped (`loop`). Measured: the loss
of an update one update late, validation every EVAL_PERIOD and the tasks' metrics every INFER_EVAL_PERIOD updates.
"""

import contextlib
import dataclasses
import functools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base import environment, malloc, phases, stores, xla_flags
from t5xpg.base.background import in_background
from t5xpg.base.errors import UserError
from t5xpg.base.files import sha256_of_file
from t5xpg.base.paths import shown
from t5xpg.base.progress import duration
from t5xpg.base.signals import NothingToSave, StopRequest
from t5xpg.base.stores import SupersededError
from t5xpg.data.recording.reader import RecordedData
from t5xpg.data.stream.client import DataService, NoBatchYetError, TaskDescription
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.distributed import ALONE, Group
from t5xpg.distributed.data_position import shared_position
from t5xpg.evaluate.measurements import measurements, require_metrics, require_selection
from t5xpg.evaluate.trained_model import ADAPTER, INITIAL, TEACHER, Origin, frozen_parameters
from t5xpg.experiment import assembly
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.config import LoadedConfig, settings
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.identity import data_config, run_identity
from t5xpg.experiment.known_tasks import known_task
from t5xpg.experiment.recipe import DataIdentity, make_all
from t5xpg.run.best import Best
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.checkpoint.folders import DIGESTS
from t5xpg.run.checkpoint.initial_checkpoint import find_checkpoint
from t5xpg.run.directory import RunDirectory, SharedRunDirectory, differing
from t5xpg.run.metrics import Window
from t5xpg.run.records import read_jsonl, to_json
from t5xpg.train import initial_state
from t5xpg.train.loop import RunState, TrainingRun, loop
from t5xpg.train.profile import Update, profiled_updates
from t5xpg.train.progress_line import ProgressLine
from t5xpg.train.run_records import RunRecords, record_start

_MAX_DIFFERENCES = 20
_SLOW_BATCH = 10.0  # seconds


@dataclass(frozen=True)
class _Start:
    """A run that is checked and whose data are prepared. step: of the checkpoint that it continues from, or 0."""

    loaded: LoadedConfig
    directory: RunDirectory
    identity: dict[str, Any]
    source: DataIdentity
    checkpointer: Checkpointer
    service: DataService | RecordedData
    group: Group
    step: int
    best: Best
    command: str


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
        stores.Uploads(path if group.first else None) as uploads,
    ):
        group.barrier("store")
        with contextlib.ExitStack() as stack:
            # Prepare: the text, vocabulary and cache that the run reads, or a recording of its batches.
            recording = None if recorded is None else stack.enter_context(_recording(recorded, experiment, end))
            source = _prepare_data(experiment, group) if recording is None else DataIdentity(**recording.source)

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
            start = _Start(loaded, directory, identity, source, checkpointer, service, group, step, best, command)
            with _adding_resume_hint(checkpointer), _open(start, profiled, request) as (run, state):
                # Loop. Where a stop is requested and no batch comes, end without a save: it would need the position
                # in the data. At once if the state is saved, otherwise after the time that a slow batch may take.
                run.stream.gives_up = lambda: (
                    stop.overdue(_SLOW_BATCH) or (stop.overdue(0.0) and state.step in (0, *checkpointer.steps()))
                )
                with contextlib.suppress(NoBatchYetError):
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


def _prepare_data(experiment: Experiment, group: Group) -> DataIdentity:
    """The identity of the data; makes what is missing. If processes share the folders, the first one makes it."""
    if group.first:
        identity = make_all(experiment.datasets, experiment.needs)
    group.barrier("data")
    return identity if group.first else make_all(experiment.datasets, experiment.needs)


# --- check ---


def require_same(group: Group, experiment: Experiment, identity: Mapping[str, Any]) -> None:
    """Raise UserError, with the differences, if this process has other settings, data or versions than the first one.

    identity: the identity of the run as this process sees it, with the text and the caches that it reads.
    """
    facts = {"settings": settings(experiment), "data": identity["data"], "cache": identity["cache"]}
    _require_same(group, "identity", to_json(facts | {"versions": environment.versions()}))


def require_same_start(group: Group, experiment: Experiment) -> None:
    """Raise UserError if this process finds another initial checkpoint or teacher than the first one."""
    sources = {"INITIAL_CHECKPOINT": experiment.initial, "TEACHER_CHECKPOINT": experiment.teacher}
    files = {name: find_checkpoint(one.checkpoint, name).folder() / DIGESTS for name, one in sources.items() if one}
    digests = {name: sha256_of_file(file) if file.exists() else file.parent.name for name, file in files.items()}
    _require_same(group, "start", digests)


def _require_same(group: Group, name: str, facts: Mapping[str, Any]) -> None:
    first_facts = json.loads(group.broadcast(name, json.dumps(facts).encode("utf-8")))
    if differences := differing(first_facts, facts):
        lines = [f"  {name}  {old} in process 0, {new} here" for name, (old, new) in differences.items()]
        heading = f"Process {group.process} was started with other settings, data or versions than process 0:"
        remedy = "Give the same command on every host, with the same checkout, packages, data and checkpoints."
        raise UserError("\n".join([heading, *lines[:_MAX_DIFFERENCES], remedy]))


def _check_fits(service: DataService | RecordedData, experiment: Experiment) -> None:
    """Print how many of the first examples of supervised tasks are cut. Raises UserError if they are too many."""
    if not isinstance(service, DataService):
        return  # the batches of a recording are fixed
    for dataset in experiment.datasets:
        row = known_task(dataset.mixture_or_task_name, experiment.needs)
        if row is not None and row.supervised is None:
            continue  # pretraining divides long texts
        fits = service.fits(dataset)
        problems = [problem for fit in fits for problem in fit.problems(dataset, experiment.max_cut_share)]
        if problems:
            raise UserError("\n".join(problems))
        for fit in fits:
            print(f"examples: {fit.summary(dataset)}", flush=True)


# --- open ---


@contextlib.contextmanager
def _open(start: _Start, profiled: bool, request: StopRequest) -> Iterator[tuple[TrainingRun, RunState]]:
    """Print the run's header, open the data, compile, make or restore the state; close all at the end of the block.

    Until the run is open, a request to stop ends the block at once: everything needed is on disk. Several processes
    have to agree on a stop, which they do only after an update.
    """
    start_time, request.at_once = time.perf_counter(), start.group.count == 1
    if request.at_once and request.requested:  # while the checkpoint was read
        raise NothingToSave
    experiment, group, service, step, best = start.loaded.experiment, start.group, start.service, start.step, start.best
    built = assembly.assemble(experiment)
    _print_header(start.loaded.name, built)
    first_update = threading.Event()
    if step or built.devices["platform"] != "cpu":
        first_update.set()  # the start, if it is measured, is measured before the first update
    with contextlib.ExitStack() as stack:

        def compile_eval_step() -> Any:
            first_update.wait()
            return built.compile_eval_step()

        # A thread works while the data process loads TensorFlow.
        initial, compiled_update, compiled_evaluation, thread_end = in_background(
            lambda: None if step else initial_state.begin(built),
            functools.partial(_compile_train_step, built),
            compile_eval_step,
            malloc.release_unused,
        )

        # The data: what is read, whether it can be measured as asked, and its vocabulary.
        train_config = data_config(experiment.train_dataset, experiment.random_seed)
        eval_config = data_config(experiment.eval_dataset, experiment.random_seed)
        metrics_config = data_config(experiment.of_metrics.eval_dataset, experiment.random_seed)
        description = service.describe(train_config)
        if experiment.infer_eval_period is not None:
            require_metrics(service, metrics_config)
        if experiment.selection is not None:
            of_validation = experiment.selection.of_validation
            require_selection(service, eval_config if of_validation else metrics_config, experiment.selection)
        vocabulary = description.vocabulary
        token_bytes = built.token_bytes(vocabulary)
        origins = initial_state.origins_of_run(built, start.checkpointer, step, initial.result, vocabulary)
        _print_data(description, experiment)
        _check_fits(service, experiment)
        record_start(
            start.directory,
            start.loaded,
            start.identity
            | {"vocabulary": vocabulary.identity}
            | {name: initial_state.identity(origin) for name, origin in origins.items()},
            built,
            vocabulary,
            step=step,
            command=start.command,
            data=start.source.manifest,
        )
        continues = f", continues after step {step:,}" if step else ""
        print(f"run: {shown(start.directory.path)}{continues}", flush=True)

        # The state, the update, and the records.
        host_rows = built.rows_of_host(group.process)
        stream = service.open(train_config, shards=host_rows.shards)
        train_step = compiled_update.result()
        update: Update = lambda state, batch: train_step(state, batch, token_bytes)  # noqa: E731
        state = _restore(start, built, origins, stream) if step else RunState(0, initial.result().state, best)
        progress = ProgressLine(built, stream, step)
        if profiled:
            update = stack.enter_context(profiled_updates(update, start.directory.profile, progress.print))
        records = stack.enter_context(RunRecords(start.directory, start.loaded, built, group, step, progress.print))
        run = TrainingRun(
            experiment=experiment,
            stream=stream,
            position=lambda: shared_position(stream.state(), start.directory.hosts, group),
            place=functools.partial(host_rows.to_global_arrays, sharding=built.batch_sharding),
            train_step=update,
            model_params=lambda state: built.model_params(state.eval_params, state.frozen),
            measurements=measurements(
                built,
                service,
                eval_config,
                vocabulary,
                lambda: service.open(eval_config),
                lambda params, batch: compiled_evaluation.result()(params, batch, token_bytes),
            ),
            checkpointer=start.checkpointer,
            records=records,
            progress=progress,
            meta=_checkpoint_meta(start.loaded, vocabulary, origins),
            first_update=first_update,
        )
        print(f"ready {duration(time.perf_counter() - start_time)} after the start", flush=True)
        request.at_once = False
        yield run, state

        # Finish: the last checkpoint is whole, and the loggers know that nothing more comes.
        start.checkpointer.wait()
        if first_update.is_set():  # a run that is stopped before it has not compiled the evaluation
            thread_end.result()
        records.complete()
    if reason := best.early_end(state.step, experiment.total_steps):
        print(f"ended after step {state.step:,}: {reason}", flush=True)
    elif experiment.selection is not None and state.step == experiment.total_steps:
        print(str(best), flush=True)


def _compile_train_step(built: Assembly) -> Any:
    """The update, compiled before the loop, so that the first step of the progress bar is only a step."""
    with phases.phase("compile"):
        return built.compile_train_steps()


def _restore(start: _Start, built: Assembly, origins: Mapping[str, Origin], stream: Any) -> RunState:
    """The state of the last checkpoint; also moves the stream to its position. Raises UserError if it does not fit."""
    experiment, step = start.loaded.experiment, start.step
    with phases.phase("restore", step):
        train_state, position, meta = start.checkpointer.restore(step, built.abstract_state)
    if experiment.frozen_model is not None:
        frozen = frozen_parameters(built, origins[INITIAL if experiment.teacher is None else TEACHER])
        train_state = dataclasses.replace(train_state, frozen=frozen)
    stream.restore(position)
    return RunState(step, train_state, start.best, Window(**meta["window"]), meta["skipped"])


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


# --- what a start prints, and what checkpoints say of the run ---


def _print_header(name: str, built: Assembly) -> None:
    """Print the name, the size and the main settings of the run, and the devices that it runs on."""
    experiment, model, devices = built.experiment, built.experiment.model, built.devices
    is_cpu, count, dtype = devices["platform"] == "cpu", devices["count"], model.config.dtype
    device = f"{count} x {devices['kind']}"
    if is_cpu:
        device = f"CPU ({environment.cpu_model() or 'unknown'}, {environment.usable_cores()} cores)"
        device += f" as {count} simulated devices" if count > 1 else ""
    if "processes" in devices:
        device += f" of {devices['processes']} processes"
    size = f"{model.num_params / 1e6:,.1f} million" if model.num_params >= 10**6 else f"{model.num_params:,}"
    print(
        f"{name}: {size} parameters, {dtype}, {type(experiment.optimizer).__name__}, batch "
        f"{experiment.train_dataset.shapes} tokens, {experiment.total_steps:,} steps, seed {experiment.random_seed}\n"
        f"device: {device}" + (f"\nproducts: {xla_flags.describe_products(dtype)}" if is_cpu else ""),
        flush=True,
    )


def _print_data(description: TaskDescription, experiment: Experiment) -> None:
    """Print the task of the run, its size, its objective and its vocabulary."""
    num_documents = description.examples.get(experiment.train_dataset.split)
    size = f", {num_documents:,} documents" if num_documents else ""
    spans = description.objective
    masking = f"; {spans.noise_density:.0%} masked in spans of {spans.mean_noise_span_length:g} tokens" if spans else ""
    cache_state = "cached" if description.cached else "not cached"
    print(f"data: {description.name}, {cache_state}{size}{masking}; {description.vocabulary.summary}", flush=True)


def _checkpoint_meta(loaded: LoadedConfig, vocabulary: Vocabulary, origins: Mapping[str, Origin]) -> dict[str, Any]:
    """The facts of the run in its checkpoints. origins: of the initial checkpoint and the teacher, if there are any."""
    adapter = loaded.experiment.adapter
    return {
        "experiment": loaded.name,
        "vocabulary": vocabulary.to_json(),
        "settings": settings(loaded.experiment.model),
        **origins,
        **({} if adapter is None else {ADAPTER: type(adapter).__name__}),
    }
