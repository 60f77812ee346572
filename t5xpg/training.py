"""A training run from its experiment: whether it can be started, how far it is, and what is said at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from t5xpg import compile_cache, paths, preparation
from t5xpg.checkpoints import Checkpointer
from t5xpg.config import LoadedConfig
from t5xpg.data import data_process
from t5xpg.data.client import DataService
from t5xpg.data.spec import DatasetConfig
from t5xpg.errors import UserError
from t5xpg.hosts import ALONE, Group
from t5xpg.paths import shown
from t5xpg.run_agreement import require_same
from t5xpg.run_identity import data_config, run_identity
from t5xpg.rundir import RunDirectory, SharedRunDirectory
from t5xpg.selection import Best
from t5xpg.signals import StopRequest
from t5xpg.training_run import Run
from t5xpg.writers import read_jsonl

if TYPE_CHECKING:
    from t5xpg.data.recorded import RecordedData


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
            if any(preparation.missing(dataset) for dataset in datasets):
                data_process.drop_early()  # it has not seen what is made now
            source = _prepared(datasets, group) if recording is None else preparation.Source(**recording.source)
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


def _prepared(datasets: list[DatasetConfig], group: Group) -> preparation.Source:
    """What is to be read, made where it is not there: by one process, where they share the folders."""
    if group.first:
        source = preparation.prepare_all(datasets)
    group.meet("data")
    return source if group.first else preparation.prepare_all(datasets)


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
            step = checkpointer.latest_here()
        if step is None:
            raise
        more = f"Step {step:,} is saved: once that is mended, the same command goes on from there."
        raise UserError(f"{error}\n{more}") from error
