"""Runs of a plan as processes: which are done, and training those that are not, a few at a time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from t5xpg.base.errors import UserError
from t5xpg.base.files import last_lines
from t5xpg.base.paths import shown
from t5xpg.base.progress import Progress
from t5xpg.experiment import config
from t5xpg.experiment.identity import run_identity
from t5xpg.experiment.prepare import DataIdentity
from t5xpg.run.best import Best, BestMetric
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import read_jsonl, whole_split

_LOOK_SECONDS = 1.0
_OUTPUT_LINES = 15


class Run(Protocol):
    """A run of a plan: of a sweep's, or of another's that is trained so.

    stage: what it is, in a word. overrides: what is laid over the experiment's gin file, as `t5xpg train` takes it.
    folder: its name among the runs of the plan.
    """

    @property
    def stage(self) -> str: ...
    @property
    def steps(self) -> int: ...
    @property
    def overrides(self) -> list[str]: ...
    @property
    def folder(self) -> str: ...


@dataclass(frozen=True)
class Outcome:
    """What a run's records say.

    step: the last update that counts. validation: its records, ascending by step. target_tokens: that it was trained
    on. diverged: whether it ended at a loss that is not finite. ended: whether it ended early, without a better
    evaluation.
    """

    step: int
    validation: list[dict[str, Any]] = field(default_factory=list)
    target_tokens: int = 0
    diverged: bool = False
    ended: bool = False

    def done(self, run: Run) -> bool:
        """Whether there is nothing left to train."""
        return self.diverged or self.ended or (bool(self.validation) and self.validation[-1]["step"] == run.steps)


def outcome(run: Run, folder: Path) -> Outcome:
    """How far `run` has come in its folder of the plan's `folder`."""
    directory = RunDirectory(folder / run.folder)
    records = read_jsonl(directory.metrics_jsonl) if directory.metrics_jsonl.exists() else []
    validation = whole_split(records, "validation")
    step = max((record["step"] for record in records), default=0)
    target_tokens = sum(record["target_tokens"] for record in whole_split(records, "train"))
    diverged = directory.nonfinite.is_dir() and any(directory.nonfinite.iterdir())
    selection = directory.read()["starts"][-1].get("selection") if directory.exists() else None
    ended = selection is not None and Best.of_records(records, BestMetric(**selection), step).ends(step)
    return Outcome(step, validation, target_tokens, diverged, ended)


def check(experiment: str, run: Run, folder: Path) -> None:
    """Raise UserError where the plan's run has a mistake, or its folder holds a run with other settings."""
    loaded = config.load(experiment, *config.split_overrides(" ".join(run.overrides)))
    identity = run_identity(loaded.experiment, DataIdentity(data={}))
    directory = RunDirectory(folder / run.folder)
    if directory.exists():
        directory.check(loaded.name, {name: identity[name] for name in ("seed", "settings")})


def train(experiment: str, wanted: Sequence[Run], folder: Path, *, jobs: int, label: str) -> None:
    """Train what is left of the runs, `jobs` at a time, each on its share of the cores, below a progress line.

    A run that an earlier call began goes on where it stopped. An interruption lets each save its step first. Raises
    UserError where a run fails; one whose loss is not finite has an outcome like any other.
    """
    states = [(run, outcome(run, folder)) for run in wanted]
    waiting = [run for run, state in states if not state.done(run)]
    if not waiting:
        return
    done = sum(run.steps if state.done(run) else state.step for run, state in states)
    with Progress(label, sum(run.steps for run in wanted), "steps", initial=done) as progress:
        _train(experiment, waiting, folder, jobs, progress)


def _train(experiment: str, waiting: list[Run], folder: Path, jobs: int, progress: Progress) -> None:
    shares = list(_shares(jobs))
    running: dict[int, _Process] = {}
    try:
        while waiting or running:
            for number in range(jobs):
                if number not in running and waiting:
                    run = waiting.pop(0)
                    running[number] = _Process(experiment, run, folder, shares[number], progress)
            time.sleep(_LOOK_SECONDS)
            for number, process in list(running.items()):
                if process.ended():
                    del running[number]
    finally:
        for process in running.values():
            process.stop()


class _Process:
    """One run under way."""

    def __init__(self, experiment: str, run: Run, folder: Path, cores: set[int] | None, progress: Progress) -> None:
        self._run, self._folder, self._progress = run, folder, progress
        self._path = folder / run.folder
        self._path.mkdir(parents=True, exist_ok=True)
        self._log = folder / f"{run.folder}.log"
        self._step = outcome(run, folder).step
        command = [sys.executable, "-m", "t5xpg", "train", experiment, *run.overrides, f"--run={self._path.absolute()}"]
        # a session of its own: Ctrl-C is passed on once, by `stop`
        with self._log.open("ab") as output, _on_cores(cores):
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def ended(self) -> bool:
        """Whether the process has ended; shows how far it is. Raises UserError where it failed."""
        code = self._process.poll()
        now = outcome(self._run, self._folder)
        loss = f"  {now.validation[-1]['nats_per_byte']:.3f} nats a byte" if now.validation else ""
        self._progress.advance(max(0, now.step - self._step), f"{self._run.folder}{loss}")
        self._step = max(self._step, now.step)
        if code is None:
            return False
        if (code and not now.diverged) or not now.done(self._run):
            lines = last_lines(self._log, _OUTPUT_LINES)
            raise UserError("\n  ".join([f"{self._run.folder} ended with {code}; {shown(self._log)} says:", *lines]))
        end = f"not finite after step {now.step:,}" if now.diverged else f"{now.step:,} steps{loss}"
        self._progress.advance(self._run.steps - self._step)  # steps that a diverged run leaves out
        self._progress.print(f"{self._run.stage}: {self._run.folder}: {end}")
        return True

    def stop(self) -> None:
        """Let it save its step, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        self._process.wait()


def _shares(jobs: int) -> Iterator[set[int] | None]:
    """The cores of each job; None where the system does not let us choose, or one job has them all."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        yield from [None] * jobs
        return
    cores = sorted(os.sched_getaffinity(0))
    for number in range(jobs):
        yield set(cores[number::jobs]) or set(cores)


@contextlib.contextmanager
def _on_cores(cores: set[int] | None) -> Iterator[None]:
    """Processes that are started in the block run on these cores."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
