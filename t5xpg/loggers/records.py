"""The records of a run as a logger is told of them: named values, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from t5xpg.metric_values import MetricValue
from t5xpg.writers import read_jsonl, to_json_number

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
