"""A watched run: the phases that it tells, and its kill in one of them."""

import os
import select
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from t5xpg.base import phases
from t5xpg.base.errors import UserError
from t5xpg.study.launchers import start_logged


class WatchedRun:
    """A process that trains, and its phases up to the last `listen`. Leaving the block kills it.

    steps: by phase, the update at each beginning of it in this start. durations: by phase, the seconds of each one that
    has ended. ended: whether the process is dead and every mark read. environment: variables added to ours.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._open: dict[str, dict[int | None, float]] = {name: {} for name in phases.PHASES}
        self._unread = b""
        self.steps: dict[str, list[int | None]] = {name: [] for name in phases.PHASES}
        self.durations: dict[str, list[float]] = {name: [] for name in phases.PHASES}
        self.ended = False
        self._began = time.monotonic()
        self._marks, end = os.pipe()
        os.set_blocking(self._marks, False)
        variables = {**os.environ, **(environment or {}), phases.VARIABLE: str(end)}
        try:
            self._process = start_logged(command, log, env=variables, pass_fds=(end,))
        except BaseException:
            os.close(self._marks)
            raise
        finally:
            os.close(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._marks)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def exit_code(self) -> int | None:
        """The exit code, as subprocess gives it: negative where a signal ended the process, None while it runs."""
        return self._process.poll()

    def listen(self, seconds: float) -> None:
        """Wait for marks, at most `seconds`, and take in what has come."""
        if select.select([self._marks], [], [], max(seconds, 0.0))[0]:
            self._read()
        elif self._process.poll() is not None:  # another process may have inherited the pipe, and keep it open
            self._drain()

    def send(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        self._process.send_signal(number)

    def kill(self) -> list[str]:
        """Kill the process with SIGKILL; returns the phases in which it died."""
        self._process.kill()
        self._process.wait()
        self._drain()
        return [name for name in phases.PHASES if self._open[name]]

    def _drain(self) -> None:
        """Read the rest of the marks from the pipe."""
        while not self.ended and select.select([self._marks], [], [], 0)[0]:
            self._read()
        self.ended = True

    def _read(self) -> None:
        piece = os.read(self._marks, 1 << 16)
        if not piece:
            self._process.wait()
            self.ended = True
        *lines, self._unread = (self._unread + piece).split(b"\n")
        for line in lines:
            event, name, *step_field = line.decode("ascii").split()
            step = int(step_field[0]) if step_field else None
            if event == "begin":
                self.steps[name].append(step)
                self._open[name][step] = time.monotonic()
            elif step in self._open[name]:
                self.durations[name].append(time.monotonic() - self._open[name].pop(step))


def kill_in(run: WatchedRun, phase: str, occurrence: int, seconds: float, *, limit_seconds: float) -> list[str] | None:
    """Kill `run` some seconds after the n-th `phase` of this start began; returns the phases in which it died.

    Returns None where the run came to its end before. Raises UserError after `limit_seconds` in which the process
    neither ended nor reached the moment.
    """
    moment: float | None = None
    while not run.ended:
        now = time.monotonic()
        if moment is None and len(run.steps[phase]) >= occurrence:
            moment = now + seconds
        if moment is not None and now >= moment:
            return run.kill()
        if run.seconds > limit_seconds:
            raise UserError(
                f"A start of the run had not come to its {phase} after {run.seconds:,.0f} s, much longer than the "
                "whole unbroken run took: it hangs. Its output lies beside the runs."
            )
        run.listen(1.0 if moment is None else min(1.0, moment - now))
    return None
