"""Records of a run: JSON lines for programs, TensorBoard events for people.

Both survive a kill at any moment: everything written before it can be read. A run that continues from step s first
drops the records of earlier processes after s, so that the records are those of an unbroken run.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.files import Closing, write_atomically
from t5xpg.base.metric_values import Generic, Histogram, Image, is_number
from t5xpg.data.late_imports import stand_ins

_FLUSH_SECONDS = 10.0  # between two flushes of events


class JsonlWriter(Closing):
    """Appends JSON objects to a file, one a line, and flushes after each line.

    Numbers are written so that reading gives the same float (NumPy and JAX scalars as Python numbers); a number that
    is not finite is written as null, because JSON cannot express it.
    """

    def __init__(self, path: Path, last_step: float = math.inf) -> None:
        """Drop the lines whose "step" is greater than `last_step`, and a last line that was cut off in the middle.

        The file is replaced as a whole: an interruption leaves the earlier one. Raises UserError for an invalid line.
        """
        lines = [line for line, record in _lines(path) if record["step"] <= last_step]
        with write_atomically(path) as file:
            file.writelines(lines)
        self._file = path.open("ab")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record."""
        text = json.dumps(to_json(record), ensure_ascii=False, allow_nan=False)
        self._file.write(text.encode("utf-8", "backslashreplace") + b"\n")  # a lone surrogate becomes an escape
        self._file.flush()

    def close(self) -> None:
        """Close the file; the writer cannot be used after it."""
        self._file.close()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines, each with a whole number under "step"; none where there is no file.

    A last line without its end (the process was killed while writing it) is left out. Raises UserError for any other
    invalid line.
    """
    return [record for _, record in _lines(path)]


class GrowingRecords:
    """Reads files of JSON lines that programs append to, each line once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, tuple[int, int, list[dict[str, Any]]]] = {}  # inode, bytes that were read, records

    def read(self, path: Path) -> list[dict[str, Any]]:
        """As `read_jsonl`."""
        with self._lock:
            status = path.stat() if path.exists() else None
            inode, end, records = self._files.get(path, (None, 0, []))
            if status is None or status.st_ino != inode or status.st_size < end:  # replaced, as a continued run does
                end, records = 0, []
            for line, record in _lines(path, end, len(records)):
                end += len(line)
                records.append(record)
            if status is not None:
                self._files[path] = (status.st_ino, end, records)
            return list(records)


def records_of_split(records: Iterable[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    """The records of a whole split ("train", "validation"), without the records of single tasks of a mixture."""
    return [record for record in records if record.get("split") == split and record.get("task") is None]


class TensorBoardWriter(Closing):
    """Writes scalars and texts as TensorBoard events, without TensorFlow.

    after_step: the step that a run continues from; TensorBoard then hides what earlier processes recorded after it.
    None: it hides nothing.
    Each start of a run writes an event file of its own.
    """

    def __init__(self, directory: Path, after_step: int | None = None) -> None:
        with stand_ins({"boto3": None}):  # it would be loaded where it is installed; events are written to files here
            from tensorboardX.event_file_writer import EventsWriter  # late: protobuf, which records in JSON do not need
        from tensorboardX.proto.event_pb2 import SessionLog

        directory.mkdir(parents=True, exist_ok=True)
        # A SummaryWriter would write in a thread, which ends at a full disk and then blocks the program for ever.
        # The suffix: two starts within a second would share a file otherwise.
        self._events = EventsWriter(str(directory / "events"), f".{time.time_ns()}")
        self._flushed = time.monotonic()
        if after_step is not None:
            self._write(after_step + 1, session_log=SessionLog(status=SessionLog.START))

    def hyperparameters(self, settings: Mapping[str, Any]) -> None:
        """Record settings for the HParams page, where runs are compared by them and by the loss of validation."""
        from tensorboardX.summary import hparams

        known = {name: value if isinstance(value, int | float) else str(value) for name, value in settings.items()}
        experiment, start, _ = hparams(known, {"validation/loss": 0.0})
        for summary in (experiment, start):
            self._write(0, summary=summary)

    def values(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        """Record metrics as `prefix/name` at a step: numbers, texts, histograms, pictures, and tensors of plugins."""
        for name, value in values.items():
            for summary in _summaries(f"{prefix}/{name}", to_json_number(value)):
                self._write(step, summary=summary)
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._events.write_event(Event(step=step, wall_time=time.time(), **content))

    def flush(self) -> None:
        """Flush the events to the file."""
        self._events.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush and close the file."""
        self._events.close()


def _summaries(tag: str, value: Any) -> Iterator[Any]:
    """Yields TensorBoard's `Summary` of a metric, one for each picture; none for what it cannot show, such as NaN."""
    from tensorboardX import summary

    if is_number(value):
        if math.isfinite(value):
            yield summary.scalar(tag, value)
    elif isinstance(value, str):
        yield summary.text(tag, value)
    elif isinstance(value, Histogram):
        counts, edges = value.counted()
        finite = value.finite()
        if finite.size:
            sums = (float(finite.sum()), float((finite**2).sum()))
            # TensorBoard names a bin by its right edge, the first one by an empty bin before it
            bins = (edges.tolist(), [0, *counts.tolist()])
            yield summary.histogram_raw(tag, float(finite.min()), float(finite.max()), int(finite.size), *sums, *bins)
    elif isinstance(value, Image):
        shown = value.pictures[: value.max_outputs]
        for number, picture in enumerate(shown):
            yield summary.image(tag if len(shown) == 1 else f"{tag}/{number}", picture, dataformats="HWC")
    elif isinstance(value, Generic) and value.summary:
        of_plugin = summary.Summary.Value.FromString(value.summary)
        of_plugin.tag = tag
        yield summary.Summary(value=[of_plugin])


class NoWriter:
    """In place of either writer, writes nothing: all its methods do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values, **named: None


def to_json(value: Any) -> Any:
    """`value` in JSON's types, also for paths, NumPy and JAX scalars; NaN and infinity become None. Else TypeError."""
    if isinstance(value, Mapping):
        return {str(key): to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, Path):
        return str(value)
    number = to_json_number(value)
    if isinstance(number, float) and not math.isfinite(number):
        return None
    if isinstance(number, bool | int | float):
        return number
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: {value!r}")


def to_json_number(value: Any) -> Any:
    """A Python number for a NumPy or JAX scalar; anything else as it is."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value


def _lines(path: Path, start: int = 0, count: int = 0) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yields the lines of a file with their records, from the byte `start` on, before which there are `count`."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(start)
        for number, line in enumerate(file, start=count + 1):
            if not line.endswith(b"\n"):  # torn: only the last line can be
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise UserError(
                    f'{path}, line {number}: expected a JSON object with a whole number under "step", found '
                    f"{line[:80].decode('utf-8', 'replace').strip()!r}. Delete that line to go on without it."
                )
            yield line, record
