"""Tells a logger of a run, in a thread of its own, from which nothing comes back but one warning."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable

from t5xpg.loggers import Logger, StartedRun
from t5xpg.loggers.records import Values
from t5xpg.loggers.told import Told

# Records that may wait for a logger; one that is further behind is given up.
WAITING = 10_000
# Seconds that the end of a run waits for a logger to take what is left.
PATIENCE = 60.0
_NOTICED = 2.0  # seconds of it after which that is said


class Teller:
    """One logger of one run: `record` and `close` return at once, or in the time that a user was promised."""

    def __init__(
        self,
        logger: Logger,
        run: StartedRun,
        told: Told,
        missed: Iterable[tuple[int, Values]],
        say: Callable[[str], None],
        *,
        waiting: int = WAITING,
        patience: float = PATIENCE,
    ) -> None:
        """missed: what earlier processes recorded. say: shows a line to the user."""
        self.name = type(logger).__name__
        self._logger, self._run, self._told, self._say = logger, run, told, say
        self._patience = patience
        self._missed = missed
        self._waiting: queue.Queue[tuple[int, Values] | None] = queue.Queue(waiting)
        self._given_up = False
        self._thread = threading.Thread(target=self._work, name=f"logger {self.name}", daemon=True)
        self._thread.start()

    def record(self, step: int, values: Values) -> None:
        """Have the logger told, if it was not before."""
        if not self._given_up:
            try:
                self._waiting.put_nowait((step, values))
            except queue.Full:
                self._give_up(f"it is {self._waiting.maxsize:,} records behind")

    def close(self) -> None:
        """Wait until the logger has everything, but not for ever."""
        if not self._given_up:
            try:
                self._waiting.put_nowait(None)
            except queue.Full:
                self._give_up(f"it is {self._waiting.maxsize:,} records behind")
        if self._given_up:
            return
        self._thread.join(min(_NOTICED, self._patience))
        if self._thread.is_alive():
            self._say(f"{self.name}: taking what is left of the records, for at most {self._patience:,.0f} s")
            self._thread.join(self._patience - min(_NOTICED, self._patience))
        if self._thread.is_alive():
            self._give_up(f"it did not take them in {self._patience:,.0f} s")

    def _work(self) -> None:
        try:
            known = self._logger.start(self._run)
            if known is not None:
                self._told.note(known)
            for step, values in self._missed:
                self._tell(step, values)
            while not self._given_up and (record := self._waiting.get()) is not None:
                self._tell(*record)
            self._logger.finish()
        except (Exception, SystemExit) as error:  # whatever a logger does, the run is none of its business
            first = (str(error).splitlines() or [""])[0]
            self._give_up(f"{type(error).__name__}: {first}" if first else type(error).__name__)

    def _tell(self, step: int, values: Values) -> None:
        if step > self._told.step:
            self._logger.record(step, values)
            self._told.note(step)

    def _give_up(self, why: str) -> None:
        if self._given_up:
            return
        self._given_up = True
        after = f"after step {self._told.step:,}" if self._told.step >= 0 else "before the first record"
        self._say(
            f"warning: the logger {self.name} ended {after} ({why}). The run goes on without it; the next start of the "
            "run, if there is one, tells it what it missed."
        )
