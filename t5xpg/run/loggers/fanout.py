"""The destinations of a run's records besides JSON lines: TensorBoard, and a thread for each of its loggers."""

import dataclasses
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from t5xpg.base.errors import first_line
from t5xpg.base.files import read_json, write_json
from t5xpg.base.metric_values import MetricValue
from t5xpg.run.loggers import Logger, StartedRun
from t5xpg.run.records import NoWriter, TensorBoardWriter, read_jsonl, to_json_number

Values = dict[str, MetricValue]
Record = tuple[int, Values]  # a step and its values
QUEUE_SIZE = 10_000  # steps that may wait for a logger; a logger that is further behind is ended
FINISH_SECONDS = 60.0  # for which the end of a run waits for a logger
NOTICE_SECONDS = 2.0  # of waiting, after which a line says what the run waits for
_NOT_VALUES = ("step", "split", "time", "task")  # keys of a record beside its values
_SKIPPED = "skipped"  # the split of skipped updates, which loggers do not get


class LastLoggedStep:
    """A logger's file in the run directory: `step`, the last one it took (-1: none), and the run's `id`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            record = read_json(file)
            self.id, self.step = str(record["id"]), int(record["step"])
        except (OSError, ValueError, TypeError, KeyError):  # the first start, or damaged: a new run for the logger
            self.id = secrets.token_hex(4)
            self.set(-1)

    def set(self, step: int) -> None:
        """Write that the logger has everything up to `step`."""
        self.step = step
        write_json(self._file, {"id": self.id, "step": step})


class LoggerThread:
    """One logger of one run, called in a thread of its own. `record` returns at once, `close` within its time limit."""

    def __init__(
        self,
        logger: Logger,
        run: StartedRun,
        last: LastLoggedStep,
        earlier: Iterable[Record],
        show: Callable[[str], None],
    ) -> None:
        """earlier: records of earlier processes; the logger gets those behind `last`. show: prints a line."""
        self.name = type(logger).__name__
        self._logger, self._run, self._last, self._earlier, self._show = logger, run, last, earlier, show
        self._queue: queue.Queue[Record | None] = queue.Queue(QUEUE_SIZE)
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"logger {self.name}", daemon=True)
        self._thread.start()

    def record(self, record: Record | None) -> None:
        """Put a step with all of its values into the queue; None after the last one."""
        if not self._failed:
            try:
                self._queue.put_nowait(record)
            except queue.Full:
                self._fail(f"it is {self._queue.maxsize:,} records behind")

    def close(self) -> None:
        """Wait until the logger has everything, for at most FINISH_SECONDS."""
        self.record(None)
        if self._failed:
            return
        self._thread.join(NOTICE_SECONDS)
        if self._thread.is_alive():
            self._show(f"{self.name}: taking what is left of the records, for at most {FINISH_SECONDS:,.0f} s")
            self._thread.join(FINISH_SECONDS - NOTICE_SECONDS)
        if self._thread.is_alive():
            self._fail(f"it did not take them in {FINISH_SECONDS:,.0f} s")

    def _work(self) -> None:
        try:
            service_step = self._logger.start(self._run)
            if service_step is not None:
                self._last.set(service_step)
            for record in self._earlier:
                self._log(record)
            while not self._failed and (queued := self._queue.get()) is not None:
                self._log(queued)
            self._logger.finish()
        except (Exception, SystemExit) as error:  # a logger must not end the run, whatever it does
            self._fail(f"{type(error).__name__}: {first_line(error)}")

    def _log(self, record: Record) -> None:
        step, values = record
        if step > self._last.step:
            self._logger.record(step, values)
            self._last.set(step)

    def _fail(self, reason: str) -> None:
        if self._failed:
            return
        self._failed = True
        after = f"after step {self._last.step:,}" if self._last.step >= 0 else "before the first record"
        self._show(
            f"warning: the logger {self.name} ended {after} ({reason}). The run goes on without it; the next start of "
            "the run, if there is one, tells it what it missed."
        )


class LoggerFanout:
    """Has the methods of a `TensorBoardWriter`. Loggers get a step when all of its values are known."""

    def __init__(self, tensorboard: TensorBoardWriter | NoWriter, threads: Sequence[LoggerThread]) -> None:
        self._tensorboard = tensorboard
        self._threads = threads
        self._step = -1
        self._values: Values = {}

    def values(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        """Record metrics as `prefix/name`."""
        self._tensorboard.values(step, values, prefix)
        if self._threads:
            if step != self._step:
                self.complete()
                self._step = step
            self._values |= prefixed(prefix, values)

    def flush(self) -> None:
        """Flush TensorBoard's file."""
        self._tensorboard.flush()

    def complete(self) -> None:
        """Give the last step, which is complete, to the loggers. Without this call, the run's next start does it."""
        if self._values:
            for thread in self._threads:
                thread.record((self._step, self._values))
            self._values = {}

    def close(self) -> None:
        """Close TensorBoard's files, and wait for the loggers."""
        self._tensorboard.close()
        for thread in self._threads:
            thread.close()


def start_threads(
    loggers: Sequence[Logger], run: StartedRun, metrics: Path, timing: Path, show: Callable[[str], None]
) -> list[LoggerThread]:
    """Start a thread for each logger, which first gets the records in `metrics` and `timing` that it lacks.

    run: its id is replaced by that of each logger's own file. show: prints a line to the user.
    """
    threads = []
    for number, logger in enumerate(loggers):
        name = type(logger).__name__
        same = sum(type(other).__name__ == name for other in loggers[:number])
        last = LastLoggedStep(run.folder / f"{name}{f'_{same}' if same else ''}.json")
        earlier = recorded_values(metrics, timing, run.step) if run.step else ()
        threads.append(LoggerThread(logger, dataclasses.replace(run, id=last.id), last, earlier, show))
    return threads


def recorded_values(metrics: Path, timing: Path, until: int) -> Iterator[Record]:
    """Yields the steps up to `until` with their values, as loggers got them when they were measured.

    Pictures and histograms are left out: the records hold only a description of them.
    """
    records = [(record["step"], record) for file in (metrics, timing) for record in read_jsonl(file)]
    selected = [one for one in records if one[0] <= until and one[1].get("split") != _SKIPPED]
    for step, group in groupby(sorted(selected, key=itemgetter(0)), key=itemgetter(0)):
        step_values: Values = {}
        for _, record in group:
            task = record.get("task")
            prefix = record.get("split", "timing") + ("" if task is None else f"/{task}")
            values = record.get("metrics", record)
            step_values |= prefixed(prefix, {name: value for name, value in values.items() if name not in _NOT_VALUES})
        yield step, step_values


def prefixed(prefix: str, values: Mapping[str, Any]) -> Values:
    """Values as `prefix/name`: numbers, and the kinds of `metric_values`; all others are left out."""
    numbers = {f"{prefix}/{name}": to_json_number(value) for name, value in values.items()}
    return {name: value for name, value in numbers.items() if isinstance(value, MetricValue) and value is not None}
