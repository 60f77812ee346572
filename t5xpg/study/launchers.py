"""Launchers of the runs of a plan: in processes of this machine, or in jobs that submitit hands to Slurm."""

import ast
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from t5xpg.base.environment import require_package
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.signals import ENDS_WITH_INPUT

HERE = "here"
# submitit's names of clusters; its "local" is a process of this machine, handled as Slurm's jobs are
CLUSTERS = ("slurm", "local")


def launcher(name: str, options: str, jobs: int, folder: Path) -> "Launcher":
    """The launcher of a name. options: submitit's, as "slurm_partition=gpu gpus_per_node=1". folder: for its files.

    Raises UserError for an unknown name, for options that submitit does not know, and where it is not installed.
    """
    if name == HERE:
        if options:
            raise UserError(f"LAUNCHER_OPTIONS={options} is for a cluster: LAUNCHER={CLUSTERS[0]}.")
        return LocalProcesses(jobs)
    if name not in CLUSTERS:
        raise UserError(f"LAUNCHER={name} is not known.{nearest(name, (HERE, *CLUSTERS))}")
    return ClusterJobs(name, dict(_option(word) for word in options.split()), folder)


def _option(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals:
        raise UserError(f"LAUNCHER_OPTIONS={word}: expected name=value, as in slurm_partition=gpu timeout_min=600.")
    with contextlib.suppress(ValueError, SyntaxError):  # a text, as in slurm_partition=gpu
        return name, ast.literal_eval(value)
    return name, value


def start_logged(
    command: Sequence[str], log: Path, env: Mapping[str, str] = os.environ, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a process whose output and errors are appended to `log`. options: of subprocess.Popen.

    Its input is a pipe into which nothing is written. When this process ends, in whatever way, the system closes the
    pipe: a program that calls `end_with_parent` is then asked to stop.
    """
    streams: Any = {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": {**env, ENDS_WITH_INPUT: "1"}}
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, **streams, **options)


class LocalProcesses:
    """Processes of this machine, each with its share of the cores where there are several."""

    def __init__(self, jobs: int) -> None:
        self._shares: list[set[int] | None] = [None] * jobs
        if jobs > 1 and hasattr(os, "sched_getaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            self._shares = [set(cores[number::jobs]) or set(cores) for number in range(jobs)]

    def launch(self, command: Sequence[str], log: Path, slot: int) -> subprocess.Popen[bytes]:
        """Start a command whose output and errors are appended to `log`. slot: its number among the running ones."""
        # a session of its own: Ctrl-C is passed on once, by `runs.train`
        process = start_logged(command, log, start_new_session=True)
        cores = self._shares[slot]
        if cores is not None:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, cores)
        return process


class ClusterJobs:
    """Jobs of a cluster that sees the same folders. submitit starts another job after one that is ended early."""

    def __init__(self, cluster: str, options: Mapping[str, Any], folder: Path) -> None:
        require_package(f"LAUNCHER={cluster}", "submitit")
        import submitit

        try:
            self._executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
            self._executor.update_parameters(**{"name": "t5xpg", **options})
        except (RuntimeError, NameError, ValueError, AssertionError, TypeError) as error:
            raise UserError(f"submitit does not take LAUNCHER={cluster} with {dict(options)}: {error}") from None

    def launch(self, command: Sequence[str], log: Path, slot: int) -> "_Job":
        """As `LocalProcesses.launch`."""
        return _Job(self._executor.submit(Work(command, log)), log)


class Work:
    """The work of a job; submitit pickles it."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command, self.log = command, log

    def __call__(self) -> int:
        # Slurm warns every process of a job before its end: this one answers, its child ignores that and stops with it
        ignore = lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # noqa: E731
        return start_logged(self.command, self.log, preexec_fn=ignore).wait()

    def checkpoint(self) -> Any:
        """The job that follows one that the cluster ended: training continues where it was saved."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _Job:
    """A job with the methods of a process."""

    def __init__(self, job: Any, log: Path) -> None:
        self._job, self._log = job, log

    def poll(self) -> int | None:
        if not self._job.done():
            return None
        error = self._job.exception()
        if error is None:
            return int(self._job.result())
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{type(error).__name__}: {error}\n")
        return 1

    def terminate(self) -> None:
        self._job.cancel(check=False)

    def wait(self) -> None:
        self._job.wait()


Launcher: TypeAlias = LocalProcesses | ClusterJobs
