"""What a row of `make bench` is, and how the contestants of a row are run: in turn, each alone in a process of its own.

A module of rows has a function `rows(repeats)`, listed in `benchmarks.__main__.MODULES`:

    def rows(repeats: int | None) -> list[Row]:
        names = {"t5xpg": ours, "transformers": theirs}      # functions that measure once, each in a new process
        found = alternate(names, repeats or 5)
        return [Row(name="decoding", what="greedy decoding", unit="tokens/s", better="higher", fixed="float32, …",
                    found=found, goal=Goal(at_least=2, against="transformers"))]

`repeats` is None where the user gave no number: each module has its own default, as far as its time allows.
"""

import functools
import json
import os
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.malloc import TUNABLES

REPOSITORY = Path(__file__).resolve().parents[1]
PEERS_PYTHON = REPOSITORY / ".venv-bench" / "bin" / "python"  # where `make bench-peers` installs them
PEERS = "not installed: `make bench-peers` installs it"
_SHOWN_CHARACTERS = 200
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")


def chosen(names: Sequence[str], known: Collection[str], variable: str) -> list[str]:
    """The entries of `known` that were asked for; all by default. Raises UserError for a name that is not known."""
    for name in names:
        if name not in known:
            raise UserError(f"{variable}: there is no {name!r}.{nearest(name, known)}")
    return [name for name in known if name in names] if names else list(known)


class NotMeasuredError(Exception):
    """A contestant has no value: it is not installed, lacks what is measured, or failed. The message says which."""


@dataclass(frozen=True)
class Goal:
    """The limit for the first contestant of a row: for its median in the row's unit, or for the ratio to `against`.

    against: the name of another contestant. The ratio says how many times as good the first contestant is
    (`Row.ratio`). The goal is printed beside the result; nothing is asserted.
    """

    at_most: float | None = None
    at_least: float | None = None
    against: str | None = None


@dataclass(frozen=True)
class Found:
    """What measuring the contestants gave: values in the order of the repeats, or why there are none."""

    values: Mapping[str, Sequence[float]]
    missing: Mapping[str, str] = field(default_factory=dict)

    def renamed(self, names: Mapping[str, str]) -> "Found":
        """The values of some contestants alone. names: {old name: new name}, in the new order."""
        return Found(
            {new: self.values[old] for old, new in names.items() if old in self.values},
            {new: self.missing[old] for old, new in names.items() if old in self.missing},
        )


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity, measured for one or several contestants; ours comes first.

    name: what ROWS= calls it; rows of one module may share it. what: the quantity, in words of the table.
    fixed: what is the same for every contestant: optimiser, precision, threads, allocator, packing, dropout, sizes.
    facts: what else was found, as JSON: losses, memory, sizes, versions of a peer. command: what measures it again.
    """

    name: str
    what: str
    unit: str
    better: Literal["lower", "higher"] = "lower"
    fixed: str
    command: str = ""
    goal: Goal | None = None
    found: Found
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", self.command or f"make bench ROWS={self.name}")

    def median(self, contestant: str) -> float | None:
        """The median in the row's unit; None where there is no value."""
        values = self.found.values.get(contestant)
        return statistics.median(values) if values else None

    def spread(self, contestant: str) -> float | None:
        """The largest value minus the smallest, divided by the median; None for fewer than two values."""
        values = self.found.values.get(contestant, ())
        middle = self.median(contestant)
        return (max(values) - min(values)) / middle if len(values) > 1 and middle else None

    def ratio(self, contestant: str) -> float | None:
        """How many times as good the first contestant is as this one: above 1 where it is better."""
        first, other = self.median(self.contestants[0]), self.median(contestant)
        if not first or not other:
            return None
        return other / first if self.better == "lower" else first / other

    @property
    def contestants(self) -> list[str]:
        """The names, ours first."""
        return [*self.found.values, *(name for name in self.found.missing if name not in self.found.values)]

    def reached(self) -> bool | None:
        """Whether the goal is reached; None where there is no goal, or no value to compare with it."""
        if (goal := self.goal) is None:
            return None
        value = self.median(self.contestants[0]) if goal.against is None else self.ratio(goal.against)
        if value is None:
            return None
        return value <= goal.at_most if goal.at_most is not None else value >= (goal.at_least or 0.0)


def failure(error: Exception) -> str:
    """What a module of rows that failed says in the place of its values; the traceback is printed."""
    traceback.print_exception(error)
    return f"failed: {type(error).__name__}: {error}".splitlines()[0]


def alternate(contestants: Mapping[str, Callable[[], float]], repeats: int) -> Found:
    """Measure each contestant once, then each again, and so on; one that cannot be measured is left out afterwards."""
    values: dict[str, list[float]] = {name: [] for name in contestants}
    missing: dict[str, str] = {}
    for repeat in range(repeats):
        for name, measure in contestants.items():
            if name in missing:
                continue
            began = time.perf_counter()
            try:
                values[name].append(measure())
            except NotMeasuredError as reason:
                missing[name] = str(reason)
                say(f"  {name}: {reason}")
            else:
                took = f"took {time.perf_counter() - began:.0f} s"
                say(f"  {name}: {number(values[name][-1])} ({repeat + 1} of {repeats}, {took})")
    return Found({name: tuple(found) for name, found in values.items() if found or name not in missing}, missing)


def alternate_reports(
    contestants: Mapping[str, Callable[[], dict[str, Any]]], quantity: str, repeats: int
) -> tuple[Found, dict[str, dict[str, Any]]]:
    """`alternate` for contestants that report more than the quantity of the row; also returns their last reports."""
    reports: dict[str, dict[str, Any]] = {}

    def measure(name: str) -> float:
        reports[name] = contestants[name]()
        return float(reports[name][quantity])

    return alternate({name: functools.partial(measure, name) for name in contestants}, repeats), reports


def report_of(arguments: Sequence[str], **options: Any) -> dict[str, Any]:
    """The JSON object that `python <arguments>` prints as its last line; options: see `output_of`."""
    return dict(json.loads(output_of(arguments, **options).strip().splitlines()[-1]))


def output_of(
    arguments: Sequence[str],
    *,
    python: Path | str = sys.executable,
    environment: Mapping[str, str] | None = None,
    seconds: float = 600.0,
) -> str:
    """Run `python <arguments>` in the repository's folder; returns what it prints.

    `environment` is added to this process's. Raises NotMeasuredError where the program ends with an error or takes
    longer than `seconds`.
    """
    variables = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(
            [python, *arguments], cwd=REPOSITORY, env=variables, timeout=seconds, text=True,
            stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise NotMeasuredError(PEERS) from None
    except subprocess.TimeoutExpired:
        raise NotMeasuredError(f"took more than {seconds:.0f} s") from None
    if done.returncode:
        reason = _reason((done.stderr.strip() or done.stdout.strip() or f"exit {done.returncode}").splitlines())
        raise NotMeasuredError(f"failed: {reason[:_SHOWN_CHARACTERS]}")
    return done.stdout


def _reason(lines: Sequence[str]) -> str:
    """The exception that ended a program, and a compiler's error behind it; not the advice that torch ends with."""
    at = max((number for number, line in enumerate(lines) if _EXCEPTION.match(line)), default=len(lines) - 1)
    return "; ".join([lines[at], *[line.strip() for line in lines[at + 1 :] if "error: " in line][:1]])


def number(value: float) -> str:
    """A number as text: three significant digits or more, with commas for thousands."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def set_tunables() -> None:
    """Set glibc's malloc as this program does, for the processes that are started."""
    if sys.platform == "linux":
        os.environ.setdefault("GLIBC_TUNABLES", TUNABLES)


def say(text: str) -> None:
    """Print a line on how far the measurements are."""
    print(text, file=sys.stderr, flush=True)
