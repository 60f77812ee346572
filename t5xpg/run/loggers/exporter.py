"""All who see a run's records besides its JSON lines: TensorBoard, and the loggers that the experiment names."""

from __future__ import annotations

import dataclasses
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from t5xpg.base.files import read_json, write_json
from t5xpg.base.metric_values import MetricValue
from t5xpg.run.loggers import Logger, StartedRun
from t5xpg.run.records import TensorBoardWriter, Unwritten, read_jsonl, to_json_number


class Told:
    """`id`: the logger's own of this run. `step`: the last one that it was told of, -1 before the first."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.id, self.step = secrets.token_hex(4), -1
        try:
            found = read_json(file)
            self.id, self.step = str(found["id"]), int(found["step"])
        except (OSError, ValueError, TypeError, KeyError):  # the first start; or not readable: a run of its own there
            self._write()

    def note(self, step: int) -> None:
        """It was told of `step`."""
        self.step = step
        self._write()

    def _write(self) -> None:
        write_json(self._file, {"id": self.id, "step": self.step})


Values = dict[str, MetricValue]
_NO_VALUES = ("step", "split", "time", "task")
_SKIPPED = "skipped"  # the split of updates that were passed over, which are told nowhere else


def named(prefix: str, values: Mapping[str, Any]) -> Values:
    """Values as `prefix/name`: numbers, and what `metric_values` has; the rest is left out."""
    found = {f"{prefix}/{name}": to_json_number(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if isinstance(value, MetricValue) and value is not None}


def recorded(metrics: Path, timing: Path, until: int) -> Iterator[tuple[int, Values]]:
    """What the files of a run hold of the steps until `until`, as it was told when it was written.

    Of pictures and histograms there is only a description in them, which is left out.
    """
    records = [(record["step"], *_of(record)) for file in (metrics, timing) for record in read_jsonl(file)]
    kept = sorted((one for one in records if one[0] <= until and one[1] != _SKIPPED), key=itemgetter(0))
    for step, several in groupby(kept, key=itemgetter(0)):
        yield step, {name: value for _, prefix, values in several for name, value in named(prefix, values).items()}


def _of(record: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The prefix under which a line of metrics.jsonl or timing.jsonl is told, and its values."""
    prefix = str(record.get("split", "timing"))
    if record.get("task") is not None:
        prefix += f"/{record['task']}"
    values = record.get("metrics", record)
    return prefix, {name: value for name, value in values.items() if name not in _NO_VALUES}


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


class Audience:
    """Has the methods of a `TensorBoardWriter`. Loggers are told of a step when all of it is known."""

    def __init__(self, tensorboard: TensorBoardWriter | Unwritten, tellers: Sequence[Teller] = ()) -> None:
        self._tensorboard = tensorboard
        self._tellers = tellers
        self._step = -1
        self._values: Values = {}

    def scalars(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        """Numbers, as `prefix/name`."""
        self._tensorboard.scalars(step, values, prefix)
        self._gather(step, values, prefix)

    def values(self, step: int, values: Mapping[str, MetricValue], prefix: str) -> None:
        """Metrics of tasks, which can be more than numbers, as `prefix/name`."""
        self._tensorboard.values(step, values, prefix)
        self._gather(step, values, prefix)

    def flush(self) -> None:
        """Hand what was recorded to the system."""
        self._tensorboard.flush()

    def complete(self) -> None:
        """The last step has no more records. Without this, the next start of the run tells of it."""
        if self._values:
            for teller in self._tellers:
                teller.record(self._step, self._values)
            self._values = {}

    def close(self) -> None:
        """Close the files, and wait for the loggers."""
        self._tensorboard.close()
        for teller in self._tellers:
            teller.close()

    def _gather(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        if not self._tellers:
            return
        if step != self._step:
            self.complete()
            self._step = step
        self._values |= named(prefix, values)


def start(
    loggers: Sequence[Logger], run: StartedRun, metrics: Path, timing: Path, say: Callable[[str], None]
) -> list[Teller]:
    """Begin to tell loggers of a run, of what they were not told before.

    run: without its id, which is each logger's own. metrics, timing: the run's records until its step.
    """
    tellers = []
    for number, logger in enumerate(loggers):
        kind = type(logger).__name__
        count = sum(type(each).__name__ == kind for each in loggers[:number])
        told = Told(run.folder / f"{kind}{f'_{count}' if count else ''}.json")
        missed = recorded(metrics, timing, run.step) if run.step else ()
        tellers.append(Teller(logger, dataclasses.replace(run, id=told.id), told, missed, say))
    return tellers
