"""Measure speeds and print one table (`make bench`, `make bench ROWS="step caching" REPEATS=5`).

A run of all rows is written to benchmarks/results/results.json, docs/benchmarks.md and README.md, where each kind of
processor has a column; a run of some is printed. Goals stand beside the results; nothing is asserted. Run it alone on
the machine: it takes about 20 minutes.
"""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence

from benchmarks import machine
from benchmarks.harness import REPOSITORY, Found, Row, chosen, failure, say, set_tunables
from benchmarks.page import RESULTS, publish, text
from t5xpg.base.errors import UserError
from t5xpg.base.progress import duration

# Modules of rows, in the order of the table.
MODULES = (
    "step",
    "flags",
    "loop",
    "start",
    "caching",
    "export",
    "decoding",
    "checkpointing",
    "restore_position",
    "growth",
)


def measured(name: str, repeats: int | None) -> list[Row]:
    """The rows of a module; if it fails, one row that says what went wrong."""
    try:
        return list(importlib.import_module(f"benchmarks.{name}").rows(repeats))
    except Exception as error:
        return [Row(name=name, what=name, unit="", fixed="", found=Found({}, {"t5xpg": failure(error)}))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", help=f"some of: {' '.join(MODULES)}")
    parser.add_argument("--repeats", type=int, help="measurements of each contestant (default: each row's own number)")
    arguments = parser.parse_args()
    try:
        names = chosen(arguments.rows, MODULES, "ROWS")
        if arguments.repeats is not None and arguments.repeats < 1:
            raise UserError(f"REPEATS={arguments.repeats}: it is 1 or more.")
        return run(names, arguments.repeats)
    except UserError as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return 1


def run(names: Sequence[str], repeats: int | None) -> int:
    """Measure, print, and publish a run of all rows."""
    set_tunables()
    began = time.monotonic()
    described = machine.describe()
    rows: list[Row] = []
    for name in names:
        say(f"{name} ({duration(time.monotonic() - began)} so far)")
        rows += measured(name, repeats)
    seconds = time.monotonic() - began
    print(text(rows))
    say(f"measured in {duration(seconds)}")
    if list(names) == list(MODULES):
        described |= {"command": "make bench", "seconds": round(seconds), "load_after": os.getloadavg()[0]}
        publish(rows, described)
        say(f"written to {RESULTS.relative_to(REPOSITORY)}, docs/benchmarks.md and README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
