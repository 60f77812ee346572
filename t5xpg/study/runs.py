"""The runs of a plan: their definitions and outcomes, and the training of unfinished ones, a few at a time."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from t5xpg.base import locks
from t5xpg.base.errors import UserError
from t5xpg.base.files import last_lines
from t5xpg.base.markdown import decimals
from t5xpg.base.paths import shown
from t5xpg.base.progress import Progress
from t5xpg.experiment import config
from t5xpg.experiment.config import ConfigError, LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.identity import run_identity
from t5xpg.run.best import Values, selected_step, values_of
from t5xpg.run.checkpoint.folders import saved_steps
from t5xpg.run.directory import RunDirectory
from t5xpg.run.provenance import counting_starts
from t5xpg.run.records import read_jsonl, records_of_split
from t5xpg.study.launchers import Launcher

_POLL_SECONDS = 1.0
_SHOWN_LINES = 15  # of the output of a process that failed


@dataclass(frozen=True, eq=False)
class StudyRun:
    """One training run of a plan.

    path: its run directory, in the folder of all runs of the plan. stage: the name of its part of the plan. labels: its
    place in the plan, such as {"recipe": "muon", "seed": 0}. bindings, gin_files: the overrides of the experiment, as
    `config.load` takes them.
    """

    experiment_name: str
    path: Path
    stage: str
    labels: Mapping[str, Any]
    bindings: Sequence[str]
    gin_files: Sequence[str] = ()

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.path)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name

    def file_beside(self, kind: str) -> Path:
        """A file beside its folder, for facts about the run: `<name>.<kind>`."""
        return self.path.with_name(f"{self.name}.{kind}")

    @cached_property
    def examined(self) -> tuple[LoadedConfig | None, list[str]]:
        """Its configuration, and the mistakes in it."""
        return config.examine(self.experiment_name, self.bindings, self.gin_files)

    @property
    def loaded(self) -> LoadedConfig:
        """Its configuration. Raises ConfigError for mistakes."""
        loaded, mistakes = self.examined
        if loaded is None or mistakes:
            raise ConfigError(self.experiment_name, mistakes)
        return loaded

    @property
    def experiment(self) -> Experiment:
        return self.loaded.experiment

    @property
    def steps(self) -> int:
        return self.experiment.total_steps

    @property
    def overrides(self) -> list[str]:
        """The overrides of the experiment, as `t5xpg train` takes them."""
        return [*(f"--gin_file={file}" for file in self.gin_files), *(f"--gin.{one}" for one in self.bindings)]

    def recorded(self) -> dict[str, Any]:
        """The run's identity, as its directory records it; empty if the run was not started."""
        identity: dict[str, Any] = self.directory.read()["identity"] if self.directory.exists() else {}
        return identity

    def check(self) -> None:
        """Raise UserError if the configuration has mistakes, or if the folder holds another run or other files."""
        self.directory.check(self.loaded.name, run_identity(self.experiment, None))


@dataclass(frozen=True)
class Outcome:
    """The progress and the results of a run, from its records.

    step: the last update with a record. validation: the records of validations, ascending by step. target_tokens: the
    number trained on. diverged: whether it ended at a loss that is not finite. done: whether nothing is left to train.
    measured: (step, values by name as `run.best.values_of` gives them) of every evaluation, ascending.
    """

    step: int
    validation: list[dict[str, Any]] = field(default_factory=list)
    target_tokens: int = 0
    diverged: bool = False
    done: bool = False
    measured: Sequence[tuple[int, Values]] = ()

    def curve(self, metric: str) -> list[tuple[int, float | None]]:
        """The steps at which a metric was measured, and its values; None for one that is not finite."""
        return [(step, values[metric]) for step, values in self.measured if metric in values]

    @property
    def last(self) -> dict[str, Any] | None:
        """The validation record of its end; None for a run that is not done, or whose loss is not finite."""
        return self.validation[-1] if self.done and not self.diverged and self.validation else None


def outcome(run: StudyRun) -> Outcome:
    """The outcome of a run up to now."""
    directory = run.directory
    records = read_jsonl(directory.metrics_jsonl)
    validation = records_of_split(records, "validation")
    step = max((record["step"] for record in records), default=0)
    # `skip_nonfinite` updates that are not finite are passed over; the next one ends the run
    skipped = len(list(directory.nonfinite.glob("step_*")))
    diverged = skipped > 0 and skipped > run.experiment.skip_nonfinite
    selected = selected_step(records, directory.read()["starts"][-1], step) if directory.exists() else None
    # a run can end early, when evaluations no longer become better
    ended_early = selected is not None and selected["ended_early"] is not None
    has_last_validation = bool(validation) and validation[-1]["step"] == run.steps
    is_saved = step in saved_steps(directory.checkpoints)  # if not, the run was killed after its last record
    target_tokens = sum(record["target_tokens"] for record in records_of_split(records, "train"))
    measured = [(record["step"], values) for record in records if (values := values_of(record))]
    done = diverged or ((ended_early or has_last_validation) and is_saved)
    return Outcome(step, validation, target_tokens, diverged, done, measured)


def train_command(experiment: str, overrides: Sequence[str], path: Path, *more: str) -> list[str]:
    """The command that trains an experiment in the run directory `path`."""
    return [sys.executable, "-m", "t5xpg", "train", experiment, *overrides, f"--run={path.absolute()}", *more]


def ended_message(subject: str, code: int | None, log: Path) -> str:
    """The message about a process that failed, with the end of its output."""
    first_line = f"{subject} ended with exit code {code}; its output lies in {shown(log)} and ends:"
    return "\n  ".join([first_line, *last_lines(log, _SHOWN_LINES)])


def sources(runs: Iterable[StudyRun]) -> dict[str, list[Any]]:
    """{"commit", "versions", "cpu", "cores"}: for each, all different values at the starts of the runs."""
    facts: dict[str, list[Any]] = {"commit": [], "versions": [], "cpu": [], "cores": []}
    for start in (start for run in runs if run.directory.exists() for start in counting_starts(run.directory.read())):
        git, host = start["git"], start["host"]
        commit = None if git is None else git["commit"][:12] + ("" if git["clean"] else ", changed")
        for name, value in zip(facts, (commit, start["versions"], host["cpu"], host["cores"]), strict=True):
            if value is not None and value not in facts[name]:
                facts[name].append(value)
    return facts


def check_same_text(runs: Iterable[StudyRun]) -> None:
    """Raise UserError if runs were trained on different exports, or with different vocabularies, under one name."""
    first_seen: dict[tuple[str, Any], tuple[Any, StudyRun]] = {}
    for run in runs:
        identity = run.recorded()
        data, vocabulary = identity.get("data") or {}, identity.get("vocabulary") or {}
        texts = data.get("sources", {"": data}).values()
        facts = [("text", one.get("dataset"), one.get("sha256")) for one in texts]
        facts.append(("vocabulary", run.labels.get("vocabulary", data.get("task")), vocabulary.get("model_sha256")))
        for kind, name, digest in facts if data else ():
            first_digest, first_run = first_seen.setdefault((kind, name), (digest, run))
            if first_digest != digest:
                raise UserError(
                    f"{first_run.path} and {run.path} were trained with another {kind} {name} each: their numbers do "
                    "not belong into one table. Delete the older of them to train it again."
                )


def train(runs: Sequence[StudyRun], *, jobs: int, label: str, launcher: Launcher) -> None:
    """Train the unfinished runs, `jobs` at a time, below a progress line.

    A run that an earlier call began continues where it stopped. On an interruption, each run saves its step first.
    Raises UserError if a run fails, and if one was started with other settings than it has now; a loss that is not
    finite is no failure, but an outcome like any other.
    """
    for run in runs:
        run.check()
    states = [(run, outcome(run)) for run in runs]
    waiting = [run for run, state in states if not state.done]
    if not waiting:
        return
    steps_done = sum(run.steps if state.done else state.step for run, state in states)
    running: dict[int, _Training] = {}
    with Progress(label, sum(run.steps for run in runs), "steps", initial=steps_done) as progress:
        try:
            while waiting or running:
                for slot in range(jobs):
                    if slot not in running and waiting:
                        running[slot] = _Training(waiting.pop(0), launcher, slot, progress)
                time.sleep(_POLL_SECONDS)
                for slot, training in list(running.items()):
                    if training.ended():
                        del running[slot]
        finally:
            for training in running.values():
                training.launched.terminate()  # it saves its step
                training.launched.wait()


class _Training:
    """One run under way."""

    def __init__(self, run: StudyRun, launcher: Launcher, slot: int, progress: Progress) -> None:
        self._run, self._progress = run, progress
        self._log = run.file_beside("log")
        self._step = outcome(run).step
        run.path.mkdir(parents=True, exist_ok=True)
        command = train_command(run.experiment_name, run.overrides, run.path)
        # the trainer of a sweep that was killed may still be saving its step
        with locks.hold(run.path / ".lock", doing=f"starting {run.name}", instead="", wait=progress.print):
            pass
        self.launched = launcher.launch(command, self._log, slot)

    def ended(self) -> bool:
        """Show the run's progress; returns True if the process has ended. Raises UserError if it failed."""
        code = self.launched.poll()
        current = outcome(self._run)
        loss = f"  {decimals(current.validation[-1]['nats_per_byte'])} nats a byte" if current.validation else ""
        self._progress.advance(max(0, current.step - self._step), f"{self._run.name}{loss}")
        self._step = max(self._step, current.step)
        if code is None:
            return False
        if (code and not current.diverged) or not current.done:
            raise UserError(ended_message(self._run.name, code, self._log))
        summary = f"not finite after step {current.step:,}" if current.diverged else f"{current.step:,} steps{loss}"
        self._progress.advance(self._run.steps - self._step)  # steps that were left out: it diverged or ended early
        self._progress.print(f"{self._run.stage}: {self._run.name}: {summary}")
        return True
