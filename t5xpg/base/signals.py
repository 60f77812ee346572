"""Ctrl-C and SIGTERM: the first asks to stop after the step, the second Ctrl-C stops at once."""

import os
import signal
from types import FrameType
from typing import Any, Self


class StopRequest:
    """A context manager that notes the first SIGINT or SIGTERM instead of dying of it."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number
        os.write(2, b"\nstopping after this step; once more stops at once, without saving\n")

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.number is not None
