"""Kills of a watched run: the phases and moments to kill it in, and the phases in which it was killed."""

import os
import random
import select
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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

    def open(self, name: str) -> bool:
        """True if the process is in this phase."""
        return bool(self._open[name])

    def send(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        self._process.send_signal(number)

    def kill(self) -> list[str]:
        """Kill the process with SIGKILL; returns the phases in which it died."""
        self._process.kill()
        self._process.wait()
        self._drain()
        return [name for name in phases.PHASES if self.open(name)]

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
            self._note(line.decode("ascii"))

    def _note(self, line: str) -> None:
        event, name, *step_field = line.split()
        step = int(step_field[0]) if step_field else None
        if event == "begin":
            self.steps[name].append(step)
            self._open[name][step] = time.monotonic()
        elif step in self._open[name]:
            self.durations[name].append(time.monotonic() - self._open[name].pop(step))


# Phases that come once in a start: a kill that comes too late for one cannot wait for the next.
_ONCE = ("compile", "restore")
# How long a phase is taken to last before one was seen: short, so that the kill falls into it.
_UNKNOWN_SECONDS = 0.1


@dataclass(frozen=True)
class Kill:
    """One kill: the phase it was meant for, the phases that were open when the process died, the one it counts for."""

    round: int
    aimed_at: str
    open: tuple[str, ...]
    step: int  # the update that had begun, or the one that was restored
    seconds: float  # since the start of the process

    @property
    def phase(self) -> str | None:
        """The phase that it counts for: the one it was meant for if that was open, or another that was."""
        if self.aimed_at in self.open:
            return self.aimed_at
        # steps overlap with saves, which go on in the background; the rarer phase says more
        return min(self.open, key=("save", "evaluate", "restore", "compile", "step").index, default=None)


class PhaseShares:
    """The number of kills that each phase still has to get; phases are drawn at random."""

    def __init__(self, kills: int, draw: random.Random) -> None:
        self._draw = draw
        shares = Counter({name: kills // len(phases.PHASES) for name in phases.PHASES})
        shares.update(draw.sample(phases.PHASES, kills % len(phases.PHASES)))
        self._left = +shares

    @property
    def left(self) -> int:
        """The number of kills still to come."""
        return self._left.total()

    def draw_phase(self, possible: Collection[str]) -> str | None:
        """A phase that still has to get kills and is possible in this start; None if there is none."""
        candidates = [name for name in phases.PHASES for _ in range(self._left[name]) if name in possible]
        return self._draw.choice(candidates) if candidates else None

    def count(self, phase: str | None) -> None:
        """Take a kill off the share of its phase."""
        if phase is not None and self._left[phase]:
            self._left[phase] -= 1


@dataclass(frozen=True)
class PhaseTimes:
    """The phases of an unbroken run, by name: the updates at which each begins, and its durations in seconds."""

    steps: Mapping[str, Sequence[int | None]]
    durations: Mapping[str, list[float]]

    def occurrences(self, saved: int | None) -> dict[str, int]:
        """The number of times that each phase comes in a start from the checkpoint `saved`, or from nothing (None)."""
        last_saved = -1 if saved is None else saved
        counts = {name: sum(step is None or step > last_saved for step in self.steps[name]) for name in phases.PHASES}
        counts["restore"] = 0 if saved is None else 1
        return {name: count for name, count in counts.items() if count}

    def duration(self, phase: str, draw: random.Random) -> float:
        """The duration of such a phase: one of the known ones, drawn at random."""
        return draw.choice(self.durations[phase] or [_UNKNOWN_SECONDS])

    def learn(self, run: WatchedRun) -> None:
        """Add the durations of another start: only a start that continues a run has a restore."""
        for name, seconds in run.durations.items():
            self.durations[name].extend(seconds)


def kill_in(
    run: WatchedRun, phase: str, occurrence: int, times: PhaseTimes, draw: random.Random, *, limit_seconds: float
) -> list[str] | None:
    """Kill `run` at a random moment of the n-th `phase` of this start; returns the phases in which it died.

    occurrence: n, or 0 to kill once the first such phase has ended, so that the run gets on. Returns None where the run
    came to its end before. Where a phase ends before the moment, the next one is awaited, with a moment nearer to its
    beginning. Raises UserError after `limit_seconds` in which the process neither ended nor reached the moment.
    """
    moment: float | None = None
    share = 1.0
    while not run.ended:
        if not occurrence and run.durations[phase]:
            return run.kill()
        now = time.monotonic()
        if occurrence and moment is None and len(run.steps[phase]) >= occurrence:
            moment = now + share * draw.random() * times.duration(phase, draw)
        if moment is not None:
            if now >= moment or (phase in _ONCE and not run.open(phase)):
                return run.kill()
            if not run.open(phase):
                moment, occurrence, share = None, len(run.steps[phase]) + 1, share / 2
        if run.seconds > limit_seconds:
            raise UserError(
                f"A start of the run had not come to its {phase} after {run.seconds:,.0f} s, much longer than the "
                "whole unbroken run took: it hangs. Its output lies beside the runs."
            )
        run.listen(1.0 if moment is None else min(1.0, moment - now))
    return None
