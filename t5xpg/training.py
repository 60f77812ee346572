"""A training run from its experiment: puts the parts together, starts or continues, and hands over to the loop."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax.stages import Compiled

from t5xpg import assembly, compile_cache, environment, hardware, heap, loop, paths, preparation
from t5xpg.assembly import Assembly
from t5xpg.background import in_background
from t5xpg.batch_trail import BatchTrail
from t5xpg.checkpoints import Checkpointer
from t5xpg.config import LoadedConfig, settings
from t5xpg.data import data_process, known_tasks
from t5xpg.data.client import DataService, Stream, TaskDescription
from t5xpg.data.spec import DatasetConfig
from t5xpg.errors import UserError
from t5xpg.experiment import Experiment
from t5xpg.first_update import LateMeasurement
from t5xpg.metrics import Window
from t5xpg.nonfinite import parameter_names
from t5xpg.observer import Cost, RunObserver, Tolerance
from t5xpg.paths import shown
from t5xpg.phases import phase
from t5xpg.profiling import StepProfile
from t5xpg.progress import Progress, duration
from t5xpg.run_header import print_data, print_header
from t5xpg.rundir import RunDirectory
from t5xpg.seeds import stream_seed
from t5xpg.signals import StopRequest
from t5xpg.state import TrainState
from t5xpg.validation import Validation
from t5xpg.vocabularies import Vocabulary

if TYPE_CHECKING:
    from t5xpg.data.recorded import RecordedData, RecordedStream

# What may differ between two starts of one run: where it runs, how far, what it keeps.
FREE_SETTINGS = ("total_steps", "model_dir", "mesh", "checkpoints")
# Settings that change nothing at these values: runs from before there were such settings are the same runs.
WITHOUT_EFFECT = {
    "skip_nonfinite": 0,
    "optimizer.relpos_bias_factor": 1.0,
    "model.config.attention_chunk_size": None,
}
_NONE = object()


def train(
    loaded: LoadedConfig,
    path: Path,
    *,
    until: int | None = None,
    recorded: Path | None = None,
    profiled: bool = False,
) -> int:
    """Train `loaded` in the run directory `path`, or continue there. Returns the exit code.

    until: pause after this update, saved, as a request to stop would. recorded: the folder of a recording
    (`make record`) to take the batches from, without TensorFlow. profiled: trace some updates (`profiling`).

    0 at the end; 128 + n where signal n asked to stop: the step was finished and saved, and the run can go on.
    Raises UserError for what the user can mend.
    """
    experiment = loaded.experiment
    end = experiment.total_steps if until is None else min(until, experiment.total_steps)
    directory = RunDirectory(path)
    with directory.lock():
        with contextlib.ExitStack() as stack:
            recording = None if recorded is None else stack.enter_context(_recording(recorded))
            datasets = [experiment.train_dataset, experiment.eval_dataset]
            if any(preparation.missing(dataset) for dataset in datasets):
                data_process.drop_early()  # it has not seen what is made now
            source = preparation.prepare_all(datasets) if recording is None else preparation.Source(**recording.source)
            if recording is not None:
                recording.require(end)
                for dataset in datasets:
                    recording.describe(data_config(dataset, experiment.random_seed))
            identity = run_identity(experiment, source)
            directory.check(loaded.name, identity)
            # from here on an interruption is a request; before, it ends an export or a caching at once
            stop = stack.enter_context(StopRequest())
            checkpointer = stack.enter_context(Checkpointer(directory.checkpoints, experiment.checkpoints))
            step = checkpointer.latest() or 0
            if step >= end:
                print(f"{loaded.name}: already trained for {step:,} steps, in {shown(path)}")
                return 0
            service = recording or stack.enter_context(
                DataService(data_dir=paths.data_directory(), cache_dir=paths.cache_directory(), log=directory.data_log)
            )
            keep = stack.enter_context(compile_cache.kept_programs())
            run = _Run(loaded, directory, identity, source, checkpointer, service, keep)
            reached = step
            with _how_to_go_on(checkpointer):
                run.start(step)
                if not stop.requested:
                    reached = run.loop(stop, until, profiled)
        if stop.requested and reached < end:
            saved = f"after step {reached:,}, which is saved" if reached else "before the first step"
            print(f"stopped {saved}; the same command goes on from there", flush=True)
    return stop.exit_code


def _recording(folder: Path) -> RecordedData:
    from t5xpg.data.recorded import RecordedData  # late: most runs have none

    return RecordedData(folder)


@contextlib.contextmanager
def _how_to_go_on(checkpointer: Checkpointer) -> Iterator[None]:
    """Add to a message that ends a run where it can go on from."""
    try:
        yield
    except UserError as error:
        step = None
        with contextlib.suppress(UserError):  # the disk may be full
            step = checkpointer.latest()
        if step is None:
            raise
        more = f"Step {step:,} is saved: once that is mended, the same command goes on from there."
        raise UserError(f"{error}\n{more}") from error


def run_identity(experiment: Experiment, source: preparation.Source) -> dict[str, Any]:
    """What makes a run the run it is; a start with another identity is refused."""
    return {
        "seed": experiment.random_seed,
        "settings": deciding_settings(experiment),
        "data": source.data,
        "cache": source.cache,
    }


def deciding_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings that make a run the run it is, by their names."""
    return deciding(settings(experiment))


def deciding(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that make a run the run it is."""
    return {
        name: value
        for name, value in values.items()
        if not name.startswith(FREE_SETTINGS) and name != "random_seed" and WITHOUT_EFFECT.get(name, _NONE) != value
    }


def data_config(config: DatasetConfig, random_seed: int) -> DatasetConfig:
    """The dataset with the seed of its own stream."""
    return dataclasses.replace(config, seed=stream_seed(random_seed, f"data/{config.split}"))


def vocabulary_identity(vocabulary: Vocabulary) -> dict[str, Any]:
    """What the ids mean: the digest of a model file, and not where it lies."""
    return {name: value for name, value in vocabulary.to_json().items() if name != "model_file"}


class _Run:
    """One process's part of a run."""

    def __init__(
        self,
        loaded: LoadedConfig,
        directory: RunDirectory,
        identity: dict[str, Any],
        source: preparation.Source,
        checkpointer: Checkpointer,
        service: DataService | RecordedData,
        keep_programs: Callable[[], None],
    ) -> None:
        self.loaded, self.directory, self.identity, self.source = loaded, directory, identity, source
        self.checkpointer, self.service, self.keep_programs = checkpointer, service, keep_programs
        self.experiment = loaded.experiment
        self.began = time.perf_counter()

    def start(self, step: int) -> None:
        """Say what will run, open the data, make or restore the state, compile the step."""
        experiment = self.experiment
        self.assembly: Assembly = assembly.assemble(experiment)
        train_config = data_config(experiment.train_dataset, experiment.random_seed)
        eval_config = data_config(experiment.eval_dataset, experiment.random_seed)
        print_header(self.loaded, self.assembly)
        # The data process loads TensorFlow while this one compiles.
        train_step, new_state, eval_step, self.compiled = in_background(
            self._compile_train_step,
            self._new_state if step == 0 else lambda: None,
            self.assembly.compile_eval_step,
            self._keep_what_is_compiled,
        )
        self.description = self._describe(train_config)
        vocabulary = self.description.vocabulary
        self.token_bytes = self.assembly.token_bytes(vocabulary)
        self.identity["vocabulary"] = vocabulary_identity(vocabulary)
        self._record_start(step)
        print_data(self.description, experiment)
        continues = f", continues after step {step:,}" if step else ""
        print(f"run: {shown(self.directory.path)}{continues}", flush=True)
        self.stream = self.service.open(train_config)
        self.validation = Validation(
            self._evaluation_stream(eval_config),
            lambda params, batch: eval_step.result()(params, batch, self.token_bytes),
            self.assembly.on_devices,
        )
        self.train_step = train_step.result()
        self.step, self.window = step, Window()
        self.tolerance = Tolerance(experiment.skip_nonfinite, parameter_names(self.assembly.abstract_state.params))
        if step:
            with phase("restore", step):
                self.state, position, meta = self.checkpointer.restore(step, self.assembly.abstract_state)
                self.stream.restore(position)
            self.window = Window.from_json(meta["window"])
            self.tolerance.skipped = meta.get("skipped", 0)
        else:
            self.state = new_state.result()
        print(f"ready {duration(time.perf_counter() - self.began)} after the start", flush=True)

    def loop(self, stop: StopRequest, until: int | None, profiled: bool) -> int:
        """Run to the end, to `until` or to a request to stop; returns the step that was reached."""
        experiment = self.experiment
        total = experiment.total_steps
        meta = {
            "experiment": self.loaded.name,
            "vocabulary": self.description.vocabulary.to_json(),
            "settings": settings(experiment.model),
        }
        progress = Progress("train", total, "steps", initial=self.step)
        trail = BatchTrail(self.stream, self.directory.batches, self.step)
        observer = RunObserver(
            directory=self.directory,
            step=self.step,
            cost=self._cost(),
            stream=self.stream,
            trail=trail,
            tolerance=self.tolerance,
            checkpointer=self.checkpointer,
            measure=lambda state: self.validation.measure(state.params),
            checkpoint_meta=meta,
            progress=progress,
        )

        def update(state: Any, batch: Any) -> Any:
            return self.train_step(state, batch, self.token_bytes)

        told: loop.Observer = observer
        profile = StepProfile(self.directory.profile, progress.print)
        train_step: Callable[[Any, Any], Any] = profile.around(update) if profiled else update
        try:
            if self.step == 0 and self.assembly.devices["platform"] == "cpu":
                told = late = LateMeasurement(observer, train_step)
                train_step = late.train_step
            elif self.step == 0:
                observer.evaluate(0, self.state)
            with progress:
                self.state, reached = loop.run(
                    self.state,
                    step=self.step,
                    window=self.window,
                    schedule=loop.Schedule(
                        total, experiment.stats_period, experiment.eval_period, experiment.checkpoints.period, until
                    ),
                    train_step=train_step,
                    batches=map(self.assembly.on_devices, trail),
                    to_host=jax.device_get,
                    observer=told,
                    should_stop=lambda: stop.requested,
                )
            self.checkpointer.wait()
            self.compiled.result()
        finally:
            profile.stop()
            observer.close()
        return reached

    def _record_start(self, step: int) -> None:
        self.directory.start(
            self.loaded.name,
            self.identity,
            step=step,
            command=environment.command_line(),
            devices=self.assembly.devices,
            facts={
                "total_steps": self.experiment.total_steps,
                "num_params": self.experiment.model.num_params,
                "data": self.source.manifest,
            },
        )
        self.directory.write_config(self.loaded.full)
        self.directory.write_operative(self.loaded.operative)

    def _describe(self, config: DatasetConfig) -> TaskDescription:
        """What is known of the task: without waiting for the data process, where that is possible."""
        known = known_tasks.describe(config, paths.data_directory()) if isinstance(self.service, DataService) else None
        return known or self.service.describe(config)

    def _evaluation_stream(self, config: DatasetConfig) -> Callable[[], Stream | RecordedStream]:
        """The stream to measure on. The data process makes it behind the first batch to train on."""
        stream, service = self.stream, self.service
        if not isinstance(stream, Stream):
            opened = service.open(config)
            return lambda: opened

        def behind_the_first_batch() -> Any:
            stream.wait()
            return service.open(config)

        return in_background(behind_the_first_batch)[0].result

    def _compile_train_step(self) -> Compiled:
        """The update, compiled now, so that the first step of the bar is a step."""
        with phase("compile"):
            return self.assembly.compile_train_step()

    def _new_state(self) -> TrainState:
        return jax.block_until_ready(self.assembly.new_state())

    def _keep_what_is_compiled(self) -> None:
        self.keep_programs()
        heap.release_unused()

    def _cost(self) -> Cost:
        experiment = self.experiment
        rows = experiment.train_dataset.batch_size
        return Cost(
            tokens=rows * sum(experiment.lengths.values()),
            flops=rows * experiment.model.flops_per_example(experiment.lengths),
            peak_flops=hardware.peak_flops_of_mesh(self.assembly.mesh, experiment.model.config.dtype),
        )


def parameters_and_vocabulary(
    directory: RunDirectory, experiment: Experiment, built: Assembly, step: int | None = None
) -> tuple[Any, Vocabulary, int]:
    """The parameters of a run's last (or a certain) checkpoint on the mesh, its vocabulary, and the step."""
    directory.read()
    with Checkpointer(directory.checkpoints, experiment.checkpoints, read_only=True) as checkpointer:
        at = checkpointer.latest() if step is None else step
        params, meta = checkpointer.restore_params(at, built.abstract_state.params)
    assert at is not None
    return params, Vocabulary.from_json(meta["vocabulary"]), at
