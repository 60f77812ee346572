"""Common parts of all boards."""

import statistics
from collections.abc import Sequence

FORMAT = 1


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A measure, rounded as boards keep it."""
    return None if value is None else round(value, digits)


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if one of the values is missing, or if there are no values."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known and len(known) == len(values) else None
