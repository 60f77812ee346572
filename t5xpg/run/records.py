"""Records of a run: JSON lines for programs, TensorBoard events for people.

Both survive a kill at any moment: what was written before can be read. A run that continues from step s first drops
what an earlier process recorded after s, so that the records are those of an unbroken run.
"""

import abc
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from t5xpg.base.errors import UserError
from t5xpg.base.files import write_atomically
from t5xpg.base.metric_values import Generic, Histogram, Image, MetricValue, is_number
from t5xpg.data.late_imports import in_place


class Closing(abc.ABC):
    """A context manager that closes itself."""

    @abc.abstractmethod
    def close(self) -> None:
        """What has to be done at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class JsonlWriter(Closing):
    """Appends JSON objects to a file, one a line, each line given to the system at once.

    Numbers are written so that reading gives the same float (NumPy and JAX scalars as Python numbers); a number that
    is not finite is written as null, because JSON cannot express it.
    """

    def __init__(self, path: Path, last_step: float = math.inf) -> None:
        """Drop the lines whose "step" is greater than `last_step`, and a last line that was cut off in the middle.

        The file is replaced as a whole: an interruption leaves the earlier one. Raises UserError for a line that is
        no record.
        """
        kept = [line for line, record in _lines(path) if record["step"] <= last_step]
        with write_atomically(path) as file:
            file.writelines(kept)
        self._file = path.open("ab")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record."""
        self._file.write(line_of(record))
        self._file.flush()

    def close(self) -> None:
        """Close the file; the writer is of no use after it."""
        self._file.close()


def line_of(record: Mapping[str, Any]) -> bytes:
    """A record as a line of JSON. A lone surrogate, which UTF-8 cannot encode, is written as an escape."""
    return json.dumps(to_json(record), ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines, each with a whole number under "step"; none where there is no file.

    A last line without its end (the process was killed while writing it) is left out. Raises UserError for any other
    line that is no record.
    """
    return [record for _, record in _lines(path)]


def whole_split(records: Iterable[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    """The records of a whole split ("train", "validation"), without the records of single tasks of a mixture."""
    return [record for record in records if record.get("split") == split and record.get("task") is None]


class TensorBoardWriter(Closing):
    """Writes scalars and texts as TensorBoard events, without TensorFlow.

    after_step: the step that a run continues from; TensorBoard then hides what earlier processes recorded after it.
    None: it hides nothing.
    Each start of a run writes an event file of its own.
    """

    def __init__(self, directory: Path, after_step: int | None = None) -> None:
        with in_place({"boto3": None}):  # it would be loaded where it is installed; events are written to files here
            from tensorboardX import SummaryWriter  # late: it loads protobuf, which records in JSON do not need

        directory.mkdir(parents=True, exist_ok=True)
        self._writer = SummaryWriter(
            logdir=str(directory),
            purge_step=None if after_step is None else after_step + 1,
            flush_secs=10,
            filename_suffix=f".{time.time_ns()}",  # two starts within a second would share a file otherwise
        )

    def hyperparameters(self, settings: Mapping[str, Any]) -> None:
        """Record settings for the HParams page, where runs are compared by them and by the loss of validation."""
        from tensorboardX.summary import hparams

        known = {name: value if isinstance(value, int | float) else str(value) for name, value in settings.items()}
        experiment, start, _ = hparams(known, {"validation/loss": 0.0})
        for summary in (experiment, start):
            self._writer._get_file_writer().add_summary(summary)

    def scalars(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        """Record numbers as `prefix/name` at a step; values that are not numbers are left out."""
        for name, value in values.items():
            number = to_json_number(value)
            if isinstance(number, int | float):
                self._writer.add_scalar(f"{prefix}/{name}", number, step)

    def values(self, step: int, values: Mapping[str, MetricValue], prefix: str) -> None:
        """Record metrics as `prefix/name` at a step: numbers, texts, histograms, pictures, and tensors of plugins."""
        for name, value in values.items():
            tag = f"{prefix}/{name}"
            if is_number(value):
                self._writer.add_scalar(tag, value, step)
            elif isinstance(value, str):
                self._writer.add_text(tag, value, step)
            elif isinstance(value, Histogram):
                self._histogram(step, tag, value)
            elif isinstance(value, Image):
                shown = value.pictures[: value.max_outputs]
                for number, picture in enumerate(shown):
                    numbered = tag if len(shown) == 1 else f"{tag}/{number}"
                    self._writer.add_image(numbered, picture, step, dataformats="HWC")
            elif isinstance(value, Generic) and value.summary:
                self._plugin_tensor(step, tag, value.summary)

    def _histogram(self, step: int, tag: str, value: Histogram) -> None:
        counts, edges = value.counted()
        finite = value.finite()
        if not finite.size:
            return
        self._writer.add_histogram_raw(
            tag,
            min=float(finite.min()),
            max=float(finite.max()),
            num=int(finite.size),
            sum=float(finite.sum()),
            sum_squares=float((finite**2).sum()),
            # TensorBoard names a bin by its right edge, the first one by an empty bin before it
            bucket_limits=edges.tolist(),
            bucket_counts=[0, *counts.tolist()],
            global_step=step,
        )

    def _plugin_tensor(self, step: int, tag: str, serialized: bytes) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        value = Summary.Value.FromString(serialized)
        value.tag = tag
        self._writer._get_file_writer().add_summary(Summary(value=[value]), step)

    def flush(self) -> None:
        """Hand what was recorded to the system."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        self._writer.close()


def open_tensorboard(
    directory: Path, after_step: int | None, say: Callable[[str], None]
) -> "TensorBoardWriter | Unwritten":
    """The writer. If its library finds no shared memory, `say` gets a line that says so, and nothing is written."""
    try:
        return TensorBoardWriter(directory, after_step)
    except OSError as error:
        if error.filename is not None:  # the directory
            raise
        say(f"without TensorBoard, whose writer needs shared memory: /dev/shm cannot be used ({error.strerror})")
        return Unwritten()


class Unwritten:
    """Takes the place of either writer where nothing is to be written: its methods do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values, **named: None


def to_json(value: Any) -> Any:
    """`value` in JSON's types, also for paths, NumPy and JAX scalars; not finite becomes None; else TypeError."""
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


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):  # torn: only the last line can be
                return
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise UserError(
                    f'{path}, line {number}: expected a JSON object with a whole number under "step", found '
                    f"{line[:80].decode('utf-8', 'replace').strip()!r}. Delete that line to go on without it."
                )
            yield line, record
