"""The values that a metric can have, without SeqIO: a number, a text, a histogram, images, or another array.

`t5xpg.data.stream.evaluator` makes them from `seqio.metrics.MetricValue`s, in the process that has TensorFlow. Records
hold them as JSON (`to_record`); `run.records.TensorBoardWriter` writes them as they are.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

_SHOWN_NUMBERS = 32  # of an array in a record, as in SeqIO's own; larger ones are described
_BINS = 30  # of a histogram that does not say how many, as in TensorFlow


@dataclass(frozen=True)
class Histogram:
    """The distribution of `values` (of any shape). bins: how many bins of equal width; None for TensorFlow's 30."""

    values: np.ndarray
    bins: int | None = None

    def finite(self) -> np.ndarray:
        """The values that are finite: float64 [number]."""
        values = np.asarray(self.values, np.float64).reshape(-1)
        return values[np.isfinite(values)]

    def counted(self) -> tuple[np.ndarray, np.ndarray]:
        """The counts of the finite values, int64 [bins], and the edges, float64 [bins + 1]; empty if none is finite."""
        finite = self.finite()
        if not finite.size:
            return np.zeros(0, np.int64), np.zeros(0)
        return np.histogram(finite, bins=self.bins or _BINS)


@dataclass(frozen=True)
class Image:
    """Pictures, [number, height, width, channels], uint8 or floats from 0 to 1; at most `max_outputs` are shown."""

    pictures: np.ndarray
    max_outputs: int = 3


@dataclass(frozen=True)
class Generic:
    """An array of any meaning. summary: TensorBoard's `Summary.Value` of it, serialised, with its plugin; or empty."""

    tensor: np.ndarray
    summary: bytes = b""


MetricValue = int | float | str | None | Histogram | Image | Generic


def to_record(value: MetricValue) -> Any:
    """The value as JSON: numbers and texts as they are, pictures as their shape, dtype and digest."""
    if isinstance(value, Histogram):
        counts, edges = value.counted()
        return {"histogram": {"counts": counts.tolist(), "edges": edges.tolist()}}
    if isinstance(value, Image):
        return {"image": _summary(value.pictures)}
    if isinstance(value, Generic):
        is_small = value.tensor.size <= _SHOWN_NUMBERS
        return {"tensor": value.tensor.tolist() if is_small else _summary(value.tensor)}
    return value


def is_number(value: MetricValue) -> TypeGuard[int | float]:
    """True if the value is a single number."""
    return isinstance(value, int | float)


def format_value(value: MetricValue) -> str:
    """The value for people, on one line: a number with four digits, a whole number, a text, or its kind and shape."""
    if value is None or isinstance(value, str):
        return "-" if value is None else value
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e6):
        return f"{int(value):,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    shape = " x ".join(map(str, next(iter(vars(value).values())).shape))
    return f"{type(value).__name__.lower()} of {shape}"


def _summary(array: np.ndarray) -> dict[str, Any]:
    contiguous = np.ascontiguousarray(array)
    digest = hashlib.sha256(contiguous.tobytes()).hexdigest()
    return {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": digest}
