"""One start of a training run, watched through the marks of its phases (`t5xpg.phases`), and killed when asked to."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from t5xpg import phases

# A save goes on in the background after its mark; whether its folder has its name by now is looked at so often.
_LOOK_SECONDS = 0.002
_SAVE = "save"


class WatchedRun:
    """A process that trains. A context manager; leaving it kills what still runs.

    What is known of it is as of the last call of `listen`:

    begun: how often each phase has begun in this start. steps: the update of each of those beginnings, by phase.
    durations: seconds of the phases that have ended, by phase. ended: whether the process is dead and every mark read.

    environment: variables beside those of this process.
    """

    def __init__(
        self, command: Sequence[str], checkpoints: Path, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._checkpoints = checkpoints
        self._open: dict[str, dict[int | None, float]] = {name: {} for name in phases.PHASES}
        self._unread = b""
        self.begun: Counter[str] = Counter()
        self.steps: dict[str, list[int | None]] = {name: [] for name in phases.PHASES}
        self.durations: dict[str, list[float]] = {name: [] for name in phases.PHASES}
        self.ended = False
        self._began = time.monotonic()
        self._marks, end = os.pipe()
        os.set_blocking(self._marks, False)
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(environment or {}), phases.VARIABLE: str(end)},
                    pass_fds=(end,),
                )
        except BaseException:
            os.close(self._marks)
            raise
        finally:
            os.close(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._marks)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    @property
    def exit_code(self) -> int | None:
        """As subprocess gives it: negative where a signal ended the process, None while it runs."""
        return self._process.poll()

    def listen(self, seconds: float) -> None:
        """Wait for marks, at most so long, and take in what has come."""
        if self._open[_SAVE]:
            seconds = min(seconds, _LOOK_SECONDS)
        readable, _, _ = select.select([self._marks], [], [], max(seconds, 0.0))
        if not readable:
            # another process may have inherited the pipe, so that it does not end with this one
            if self._process.poll() is not None:
                self._drain()
            self._look_for_saved()
            return
        self._read()

    def open(self, name: str) -> bool:
        """Whether the process is in this phase: a save is until its checkpoint has its name on disk."""
        return bool(self._open[name])

    def send(self, number: int) -> None:
        """Send a signal, where the process still runs."""
        self._process.send_signal(number)

    def kill(self) -> list[str]:
        """Kill the process with SIGKILL; the phases in which it died."""
        self._process.kill()
        self._process.wait()
        self._drain()
        return [name for name in phases.PHASES if self.open(name)]

    def _drain(self) -> None:
        """Read what the process has left behind in the pipe."""
        while not self.ended and select.select([self._marks], [], [], 0)[0]:
            self._read()
        self.ended = True
        self._look_for_saved()

    def _read(self) -> None:
        piece = os.read(self._marks, 1 << 16)
        if not piece:
            self._process.wait()
            self.ended = True
        *lines, self._unread = (self._unread + piece).split(b"\n")
        for line in lines:
            self._take(line.decode("ascii"))
        self._look_for_saved()

    def _take(self, line: str) -> None:
        what, name, *more = line.split()
        step = int(more[0]) if more else None
        if what == "begin":
            if name == _SAVE:  # one at a time: an earlier one is over, though its folder may be gone again
                self._close_all(_SAVE)
            self.begun[name] += 1
            self.steps[name].append(step)
            self._open[name][step] = time.monotonic()
        elif name == _SAVE:
            # told late, when the next one begins; or early, by a writer that goes on in the background
            self._look_for_saved()
        elif step in self._open[name]:
            self._close(name, step)

    def _look_for_saved(self) -> None:
        for step in list(self._open[_SAVE]):
            if (self._checkpoints / str(step)).is_dir():
                self._close(_SAVE, step)

    def _close_all(self, name: str) -> None:
        for step in list(self._open[name]):
            self._close(name, step)

    def _close(self, name: str, step: int | None) -> None:
        self.durations[name].append(time.monotonic() - self._open[name].pop(step))
