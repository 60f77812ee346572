"""One host is asked to stop, and all stop after the same update.

A signal reaches the hosts at different moments, or one of them alone, and none of them may begin an update that another
does not begin: the others would wait for it for ever. So each tells how far it may have gone when it hears of the
request, and the last of those updates is the last of all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class StopTogether:
    """What one process says and hears. `heard` is called by a thread that waits for nothing, `reached` by the loop.

    step: updates that have been begun. promise: tells the others a number; promises: waits for those of all processes.
    """

    def __init__(self, step: int, promise: Callable[[int], None], promises: Callable[[], list[int]]) -> None:
        self._begun = step
        self._promise, self._promises = promise, promises
        self._lock = threading.Lock()
        self._promised = False
        self._last: int | None = None

    def heard(self) -> None:
        """A process was asked to stop. This one may be beginning the next update right now."""
        with self._lock:
            if self._promised:
                return
            self._promised = True
            begun = self._begun
        self._promise(begun + 1)

    def reached(self, step: int) -> bool:
        """Whether the update that was just begun is the last one of all. To be asked after every update."""
        with self._lock:
            self._begun = step
            if not self._promised:
                return False
        if self._last is None:
            self._last = max(self._promises())
        return step >= self._last
