"""What the boards of all studies have in common: one JSON value, made from the records of runs and nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from t5xpg.study.runs import Run

FORMAT = 1
_DIGITS = 6


def rounded(value: float | None, digits: int = _DIGITS) -> float | None:
    """A measure as a board has it."""
    return None if value is None else round(value, digits)


def mean(values: Sequence[float | None]) -> float | None:
    """None where one of the values is missing, or there is none."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known and len(known) == len(values) else None


def sources(runs: Iterable[Run]) -> dict[str, list[Any]]:
    """{"commit", "versions", "cpu", "cores"}: each with all values that it had at a start of one of the runs."""
    facts: dict[str, list[Any]] = {"commit": [], "versions": [], "cpu": [], "cores": []}
    for run in runs:
        for start in run.directory.read()["starts"] if run.directory.exists() else []:
            git = start["git"]
            values = {
                "commit": None if git is None else git["commit"][:12] + ("" if git["clean"] else ", changed"),
                "versions": start["versions"],
                "cpu": start["host"]["cpu"],
                "cores": start["host"]["cores"],
            }
            for name, value in values.items():
                if value is not None and value not in facts[name]:
                    facts[name].append(value)
    return facts
