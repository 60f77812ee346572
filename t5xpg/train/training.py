"""A training run from its experiment: whether it can be started, how far it is, and what is said at its end."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax.stages import Compiled

from t5xpg.base import environment, paths, phases
from t5xpg.base.errors import UserError
from t5xpg.base.paths import shown
from t5xpg.base.progress import Progress, duration
from t5xpg.base.signals import StopRequest
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream import process
from t5xpg.data.stream.client import DataService, Stream
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.distributed import ALONE, Group, hardware
from t5xpg.distributed.positions import SharedPositions
from t5xpg.evaluate.measurements import describe, measurements, require_metrics, require_selection
from t5xpg.experiment import assembly, prepare
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.config import LoadedConfig, settings
from t5xpg.experiment.identity import data_config, deciding_settings, run_identity, vocabulary_identity
from t5xpg.run.batch_trail import BatchTrail, SharedTrail
from t5xpg.run.best import Best
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.directory import RunDirectory, SharedRunDirectory
from t5xpg.run.loggers import StartedRun
from t5xpg.run.metrics import Window
from t5xpg.run.records import read_jsonl
from t5xpg.train import compile_cache, initial_state, loop, startup
from t5xpg.train.agreement import print_data, print_header, require_same
from t5xpg.train.bookkeeping import Cost, RunObserver, Tolerance
from t5xpg.train.nonfinite import parameter_names
from t5xpg.train.startup import LateMeasurement, StepProfile, in_background

if TYPE_CHECKING:
    from t5xpg.data.recording.reader import RecordedData, RecordedStream
    from t5xpg.distributed.group import Stop


class Run:
    """One process's part of a run: `start`, then `loop`."""

    def __init__(
        self,
        loaded: LoadedConfig,
        directory: RunDirectory,
        identity: dict[str, Any],
        source: prepare.Source,
        checkpointer: Checkpointer,
        best: Best,
        service: DataService | RecordedData,
        keep_programs: Callable[[], None],
        group: Group,
    ) -> None:
        self.loaded, self.directory, self.identity, self.source = loaded, directory, identity, source
        self.checkpointer, self.best, self.service, self.keep_programs = checkpointer, best, service, keep_programs
        self.group = group
        self.experiment = loaded.experiment
        self.began = time.perf_counter()
        # what measuring needs is made when the first update is done, which a user waits for
        self.first_update = threading.Event()

    def start(self, step: int) -> None:
        """Say what will run, open the data, make or restore the state, compile the step."""
        experiment = self.experiment
        self.assembly: Assembly = assembly.assemble(experiment)
        train_config = data_config(experiment.train_dataset, experiment.random_seed)
        eval_config = data_config(experiment.eval_dataset, experiment.random_seed)
        print_header(self.loaded, self.assembly)
        if step or self.assembly.devices["platform"] != "cpu":
            self.first_update.set()  # the measurement comes before it, if there is any
        # The data process loads TensorFlow while this one compiles.
        begun, train_step, eval_step, self.compiled = in_background(
            (lambda: initial_state.begin(self.assembly)) if step == 0 else lambda: None,
            self._compile_train_step,
            self._compile_eval_step,
            self._keep_what_is_compiled,
        )
        self.description = describe(self.service, train_config)
        if experiment.infer_eval_period is not None:
            require_metrics(self.service, eval_config)
        if step == 0 and experiment.selection is not None:
            require_selection(self.service, eval_config, experiment.selection)
        vocabulary = self.description.vocabulary
        self.token_bytes = self.assembly.token_bytes(vocabulary)
        self.identity["vocabulary"] = vocabulary_identity(vocabulary)
        self.origin = self._origin(step, begun, vocabulary)
        self._record_start(step)
        print_data(self.description, experiment)
        continues = f", continues after step {step:,}" if step else ""
        print(f"run: {shown(self.directory.path)}{continues}", flush=True)
        self.held = self.assembly.held_rows(self.group.process)
        self.stream = self.service.open(train_config, shards=self.held.shards)
        self.measurements = measurements(
            self.assembly,
            self.service,
            eval_config,
            vocabulary,
            self._evaluation_stream(eval_config),
            lambda params, batch: eval_step.result()(params, batch, self.token_bytes),
        )
        self.train_step = train_step.result()
        self.step, self.window = step, Window()
        self.tolerance = Tolerance(experiment.skip_nonfinite, parameter_names(self.assembly.abstract_state.params))
        if step:
            with phases.phase("restore", step):
                self.state, position, meta = self.checkpointer.restore(step, self.assembly.abstract_state)
                self.stream.restore(position)
            self.window = Window.from_json(meta["window"])
            self.tolerance.skipped = meta.get("skipped", 0)
        else:
            self.state = begun.result().state
        print(f"ready {duration(time.perf_counter() - self.began)} after the start", flush=True)

    def loop(self, stop: Stop, until: int | None, profiled: bool) -> int:
        """Run to the end, to `until` or to a request to stop; returns the step that was reached."""
        experiment = self.experiment
        total = experiment.total_steps
        meta = {
            "experiment": self.loaded.name,
            "vocabulary": self.description.vocabulary.to_json(),
            "settings": settings(experiment.model),
            **({} if self.origin is None else {initial_state.NAME: self.origin}),
        }
        alone = self.group.count == 1
        progress = Progress("train", total, "steps", initial=self.step)
        trail = self._trail()
        observer = RunObserver(
            directory=self.directory,
            step=self.step,
            cost=self._cost(),
            stream=self.stream if alone else SharedPositions(self.stream, self.directory.hosts, self.group),
            trail=trail,
            tolerance=self.tolerance,
            best=self.best,
            checkpointer=self.checkpointer,
            measurements=self.measurements,
            checkpoint_meta=meta,
            progress=progress,
            loggers=experiment.loggers,
            started=self._started(),
        )

        def update(state: Any, batch: Any) -> Any:
            return self.train_step(state, batch, self.token_bytes)

        told: loop.Observer = observer
        profile = StepProfile(self.directory.profile, progress.print)
        train_step: Callable[[Any, Any], Any] = profile.around(update) if profiled else update
        try:
            if not self.first_update.is_set():
                told = late = LateMeasurement(observer, train_step, self.first_update.set)
                train_step = late.train_step
            elif self.step == 0:
                observer.evaluate(0, self.state)
            with progress:
                self.state, reached = loop.run(
                    self.state,
                    step=self.step,
                    window=self.window,
                    schedule=loop.Schedule(
                        total_steps=total,
                        stats_period=experiment.stats_period,
                        eval_period=experiment.eval_period,
                        save_period=experiment.checkpoints.period,
                        infer_eval_period=experiment.infer_eval_period,
                        until=until,
                    ),
                    train_step=train_step,
                    batches=map(functools.partial(self.assembly.on_devices, held=self.held), trail),
                    to_host=jax.device_get,
                    observer=told,
                    should_stop=stop.reached,
                )
            self.first_update.set()  # a request to stop may have come before it
            self.checkpointer.wait()
            self.compiled.result()
            observer.complete()
            self._peak_flops(again=True)  # what starts measure, while TensorFlow loads beside them, can be too low
        finally:
            profile.stop()
            observer.close()
        if self.best.ends(reached):
            print(f"ended after step {reached:,}: {self.best.reason}", flush=True)
        elif experiment.selection is not None and reached == total:
            print(str(self.best), flush=True)
        return reached

    def _trail(self) -> BatchTrail:
        path = self.directory.batches if self.group.first else None
        parts = self.experiment.train_dataset.num_virtual_shards
        if self.group.count == 1:
            return BatchTrail(self.stream, path, self.step, parts)
        return SharedTrail(
            self.stream,
            path,
            self.step,
            parts,
            owned=[self.assembly.held_rows(process).shards for process in range(self.group.count)],
            process=self.group.process,
            gather=functools.partial(self.group.gathered, "batches"),
        )

    def _origin(self, step: int, begun: Future[Any], vocabulary: Vocabulary) -> initial_state.Origin | None:
        """What the run was started from, if it was started from anything, as a part of its identity."""
        if self.experiment.initial is None:
            return None
        if step:
            origin = initial_state.origin_of(self.assembly, self.checkpointer.meta(step)[initial_state.NAME])
        else:
            start = begun.result()
            initial_state.require_vocabulary(vocabulary, start.vocabulary, self.experiment)
            origin = start.origin
            print(f"start: {origin['experiment']} after step {origin['step']:,}, {origin['named']}", flush=True)
        self.identity[initial_state.NAME] = initial_state.identity(origin)
        return origin

    def _started(self) -> StartedRun:
        """The run as loggers are told of it, but for the id that each has for it."""
        return StartedRun(
            experiment=self.loaded.name,
            id="",
            directory=self.directory.path,
            folder=self.directory.loggers,
            step=self.step,
            settings=deciding_settings(self.experiment) | {"random_seed": self.experiment.random_seed},
            gin=self.loaded.full,
            facts=self._facts() | {"devices": self.assembly.devices},
        )

    def _facts(self) -> dict[str, Any]:
        return {"total_steps": self.experiment.total_steps, "num_params": self.experiment.model.num_params}

    def _record_start(self, step: int) -> None:
        if not self.directory.written:
            return
        self.directory.start(
            self.loaded.name,
            self.identity,
            step=step,
            command=environment.command_line(),
            devices=self.assembly.devices,
            facts={
                **self._facts(),
                "data": self.source.manifest,
                "selection": settings(self.experiment.selection) if self.experiment.selection else None,
            },
        )
        self.directory.keep_model(self.description.vocabulary.model_file)
        self.directory.write_config(self.loaded.full)
        self.directory.write_operative(self.loaded.operative)

    def _evaluation_stream(self, config: DatasetConfig) -> Callable[[], Stream | RecordedStream]:
        """The stream to measure on. The data process makes it behind the first update."""
        stream, service = self.stream, self.service
        if not isinstance(stream, Stream):
            opened = service.open(config)
            return lambda: opened

        def behind_the_first_update() -> Any:
            stream.wait()
            self.first_update.wait()
            return service.open(config)

        return in_background(behind_the_first_update)[0].result

    def _compile_train_step(self) -> Compiled:
        """The update, compiled now, so that the first step of the bar is a step."""
        with phases.phase("compile"):
            return self.assembly.compile_train_step()

    def _compile_eval_step(self) -> Compiled:
        self.keep_programs()
        self.first_update.wait()
        return self.assembly.compile_eval_step()

    def _keep_what_is_compiled(self) -> None:
        self.keep_programs()
        startup.release_unused()

    def _cost(self) -> Cost:
        experiment = self.experiment
        rows = experiment.train_dataset.batch_size
        return Cost(
            tokens=rows * sum(experiment.lengths.values()),
            flops=rows * experiment.model.flops_per_example(experiment.lengths),
            peak_flops=self._peak_flops(),
        )

    def _peak_flops(self, *, again: bool = False) -> float | None:
        dtype = self.experiment.model.config.dtype
        return hardware.peak_flops_of_mesh(self.assembly.mesh, dtype, again=again)


def train(
    loaded: LoadedConfig,
    path: Path,
    *,
    until: int | None = None,
    recorded: Path | None = None,
    profiled: bool = False,
    group: Group = ALONE,
) -> int:
    """Train `loaded` in the run directory `path`, or continue there. Returns the exit code.

    until: pause after this update, saved, as a request to stop would. recorded: the folder of a recording
    (`make record`) to take the batches from, without TensorFlow. profiled: trace some updates (`profiling`). group: the
    processes that train together; each makes this call.

    0 at the end; 128 + n where signal n asked to stop: the step was finished and saved, and the run can go on.
    Raises UserError for what the user can mend.
    """
    experiment = loaded.experiment
    end = experiment.total_steps if until is None else min(until, experiment.total_steps)
    directory = RunDirectory(path) if group.first else SharedRunDirectory(path, group.process)
    with _locked(directory, group):
        with contextlib.ExitStack() as stack:
            recording = None if recorded is None else stack.enter_context(_recording(recorded))
            datasets = [experiment.train_dataset, experiment.eval_dataset]
            if any(prepare.missing(dataset) for dataset in datasets):
                process.drop_early()  # it has not seen what is made now
            source = _prepared(datasets, group) if recording is None else prepare.Source(**recording.source)
            if recording is not None:
                recording.require(end)
                for dataset in datasets:
                    recording.describe(data_config(dataset, experiment.random_seed))
            identity = run_identity(experiment, source)
            directory.check(loaded.name, identity)
            require_same(group, experiment, identity)
            # from here on an interruption is a request; before, it ends an export or a caching at once
            request = stack.enter_context(StopRequest())
            checkpointer = stack.enter_context(Checkpointer(directory.checkpoints, experiment.checkpoints, group=group))
            step = checkpointer.latest() or 0
            stop = group.follow(request, step)
            records = read_jsonl(directory.metrics_jsonl) if experiment.selection is not None else []
            best = Best.of_records(records, experiment.selection, step)
            if step >= end or best.ends(step):
                checkpointer.tidy()
                early = f"; it ended early: {best.reason}" if best.ends(step) else ""
                print(f"{loaded.name}: already trained for {step:,} steps, in {shown(path)}{early}")
                return 0
            service = recording or stack.enter_context(
                DataService(data_dir=paths.data_directory(), cache_dir=paths.cache_directory(), log=directory.data_log)
            )
            # processes that wait for each other while they compile must all do so, whatever one of them has kept
            kept = compile_cache.kept_programs() if group.count == 1 else contextlib.nullcontext(lambda: None)
            keep = stack.enter_context(kept)
            run = Run(loaded, directory, identity, source, checkpointer, best, service, keep, group)
            reached = step
            with _how_to_go_on(checkpointer):
                run.start(step)
                if group.count > 1 or not request.requested:  # several agree upon the update after which they stop
                    reached = run.loop(stop, until, profiled)
        if stop.number is not None and reached < end and not best.ends(reached):
            saved = f"after step {reached:,}, which is saved" if reached else "before the first step"
            print(f"stopped {saved}; the same command goes on from there", flush=True)
    return 0 if stop.number is None else 128 + stop.number


def _locked(directory: RunDirectory, group: Group) -> contextlib.AbstractContextManager[None]:
    """The first process holds the folder for all."""
    return directory.lock() if group.first else contextlib.nullcontext()


def _prepared(datasets: list[DatasetConfig], group: Group) -> prepare.Source:
    """What is to be read, made where it is not there: by one process, where they share the folders."""
    if group.first:
        source = prepare.prepare_all(datasets)
    group.meet("data")
    return source if group.first else prepare.prepare_all(datasets)


def _recording(folder: Path) -> RecordedData:
    from t5xpg.data.recording.reader import RecordedData  # late: most runs have none

    return RecordedData(folder)


@contextlib.contextmanager
def _how_to_go_on(checkpointer: Checkpointer) -> Iterator[None]:
    """Add to a message that ends a run where it can go on from."""
    try:
        yield
    except UserError as error:
        step = None
        with contextlib.suppress(UserError):  # the disk may be full
            step = checkpointer.latest_here()
        if step is None:
            raise
        more = f"Step {step:,} is saved: once that is mended, the same command goes on from there."
        raise UserError(f"{error}\n{more}") from error
