"""How the cost of a training step grows with the length of the inputs, by kind of attention, and with the vocabulary.

Each size is a process of its own (`benchmarks.ours`).
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Found, Goal, Row, alternate, number, report_of, say
from benchmarks.jobs import JOBS, Job

LENGTHS = [dataclasses.replace(JOBS["small"], batch=1, inputs=inputs, targets=256) for inputs in (1024, 8192)]
VOCABULARIES = [dataclasses.replace(JOBS["small"], batch=8, vocabulary=size) for size in (384, 32768)]
WINDOWS = {"encoder": (127, 127), "pattern": 1000}  # in every layer of the encoder
ATTENTIONS: dict[str, dict[str, Any]] = {  # settings of Windows
    "windows": WINDOWS,
    "windows and global tokens (LongT5)": WINDOWS | {"global_block": 16},
}
FIXED = "t5xpg, AdamW, float32, packed masks, dropout 0, 2 segments a row"


def rows(repeats: int | None) -> list[Row]:
    """How time and memory a token grow with the length, and time against the operations with the vocabulary."""
    measured: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in ATTENTIONS}

    def time_of(name: str) -> float:
        reports = [_report(job, ATTENTIONS[name]) for job in LENGTHS]
        measured[name].append(reports)
        return grown(reports, "seconds", "tokens")

    def of_vocabularies() -> float:
        return grown([_report(job, {}) for job in VOCABULARIES], "seconds", "flops")

    count = repeats or 1
    time = alternate({name: functools.partial(time_of, name) for name in ATTENTIONS}, count)
    memory = {name: tuple(grown(reports, "memory", "tokens") for reports in measured[name]) for name in time.values}
    vocabulary = alternate({"t5xpg": of_vocabularies}, count)
    lengths = f"{LENGTHS[0].inputs:,} to {LENGTHS[1].inputs:,} inputs, {LENGTHS[0].targets} targets"
    sizes = f"vocabulary {VOCABULARIES[0].vocabulary:,} to {VOCABULARIES[1].vocabulary:,}"
    row = functools.partial(Row, name="growth", unit="times", fixed=FIXED)
    return [
        row(what=f"time a token, {lengths}", found=time, goal=Goal(at_most=1.3), facts=measured),
        row(what=f"memory a token, {lengths}", found=Found(memory, time.missing), goal=Goal(at_most=1.0)),
        row(what=f"time of a step against its operations, {sizes}", found=vocabulary, goal=Goal(at_most=1.15)),
    ]


def grown(reports: Sequence[Mapping[str, Any]], of: str, against: str) -> float:
    """How many times larger `of` by `against` is in the second report than in the first."""
    smaller, larger = (float(report[of]) / report[against] for report in reports)
    return larger / smaller


def _report(job: Job, settings: Mapping[str, Any]) -> dict[str, Any]:
    options = [json.dumps(dataclasses.asdict(job)), json.dumps(settings)]
    report = report_of(["-m", "benchmarks.ours", "growth", *options], seconds=180)
    say(f"  {job.inputs:,} inputs, {job.vocabulary:,} ids: {number(1000 * report['seconds'])} ms")
    return report
