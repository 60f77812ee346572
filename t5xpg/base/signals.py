"""Ctrl-C and SIGTERM: the first asks to stop after the step, a second Ctrl-C stops at once.

A process can get one request twice: SIGTERM to a process group comes from its sender and, once more, from Make.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType
from typing import Any, Self

_ONE_REQUEST = 1.0  # seconds within which signals are one request


class StopRequest:
    """A context manager that notes the first SIGINT or SIGTERM instead of dying of it."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._first = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number, self._first = number, time.monotonic()
            once_more = b"; once more stops at once, without saving" if number == signal.SIGINT else b""
            os.write(2, b"\nstopping after this step" + once_more + b"\n")
        elif number == signal.SIGINT and self.age > _ONE_REQUEST:
            raise KeyboardInterrupt

    @property
    def age(self) -> float:
        """Seconds since the first signal."""
        return time.monotonic() - self._first

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.number is not None
