"""Ctrl-C and SIGTERM: the first asks to stop after the step, if there is one; a second Ctrl-C stops at once.

A process can get one request twice: SIGTERM to a process group comes from its sender and, once more, from Make.
"""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

ENDS_WITH_INPUT = "T5XPG_ENDS_WITH_INPUT"  # see `end_with_parent`
_ONE_REQUEST = 1.0  # seconds within which signals are one request


class NothingToSave(BaseException):
    """Raised by a request to stop while `StopRequest.at_once`."""


class StopRequest:
    """A context manager that records the first SIGINT or SIGTERM. at_once: the signal ends the block."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.at_once = False
        self._first = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        return kind is NothingToSave

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number, self._first = number, time.monotonic()
            if self.at_once:
                raise NothingToSave
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
        """True once a signal has come."""
        return self.number is not None

    def reached(self, step: int) -> bool:
        """True if the update `step`, just begun, is the last one. Called after every update."""
        return self.requested

    def overdue(self, seconds: float) -> bool:
        """True if the stop was requested at least `seconds` ago, and this process may end without waiting."""
        return self.requested and self.age >= seconds


def end_with_parent() -> None:
    """Send this process SIGTERM when its input ends, if ENDS_WITH_INPUT is set: then its parent has ended."""
    if os.environ.pop(ENDS_WITH_INPUT, None):
        threading.Thread(target=_wait_for_end_of_input, daemon=True).start()


def _wait_for_end_of_input() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
