"""Measure a GPU: correctness and speed (`make gpu`, `make gpu PARTS="units parity"`).

Each part is written to benchmarks/results/gpu.json and docs/benchmarks.md as soon as it has something, under the kind
of the device; parts that are not measured now stay as they were. Where JAX has no GPU, everything is done in small
sizes, to try it, and nothing is published. Without PARTS it takes about a quarter of an hour.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import gpu_checks, gpu_speed, page
from benchmarks.gpu_device import Conditions
from benchmarks.harness import NotMeasuredError, Row, chosen, failure, report_of, say, set_tunables
from t5xpg.base import environment
from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_if_any
from t5xpg.base.progress import duration
from t5xpg.check.plan.devices import USABLE_MEMORY

CUT = "it was cut off before its end"


PARTS: Mapping[str, tuple[Callable[[Conditions], Iterator[Row]], float]] = {  # what yields rows, and seconds for it
    "units": (gpu_checks.units, 240),
    "parity": (gpu_checks.parity, 180),
    "step": (gpu_speed.step, 480),
    "plan": (gpu_speed.plan, 120),
    "decoding": (gpu_speed.decoding, 120),
}


class Results:
    """The results file: for each kind of device {"device", "parts": {name: {"rows", "missing", …}}}."""

    def __init__(self, file: Path | None, device: Mapping[str, Any]) -> None:
        self._file = file
        self._all = {} if file is None else json_object_if_any(file)
        own = self._all.setdefault(device["kind"], {"parts": {}})
        own["device"] = dict(device)
        self.parts: dict[str, Any] = own["parts"]

    def write(self) -> None:
        """Write the file; the published one with its page."""
        if self._file is not None:
            published = self._file == page.GPU_RESULTS
            page.write(self._file, self._all, {page.PAGE: page.gpu_block(self._all)} if published else {})

    def measure(self, name: str, given: Conditions, measure: Callable[[Conditions], Iterator[Row]]) -> None:
        """Run a part; write each row as it comes and, if the part does not come to its end, the reason."""
        began, rows = time.monotonic(), dict[str, dict[str, Any]]()
        part = self.parts[name] = {
            "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "git": environment.git_state(),
            "versions": environment.versions(),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "seconds": None,
            "missing": CUT,
            "rows": [],
        }
        self.write()
        try:
            for row in measure(given):
                rows[row.what] = page.to_json(row)
                part["rows"] = list(rows.values())
                self.write()
            part["missing"] = None
        except NotMeasuredError as reason:
            part["missing"] = str(reason)
        except Exception as error:
            part["missing"] = failure(error)
        part["seconds"] = round(time.monotonic() - began)
        self.write()


def run(names: Sequence[str], *, seconds: float | None, small: bool, results: Path | None) -> int:
    """Measure and print; returns 1 where a part has not come to its end."""
    set_tunables()
    # the share of a device's memory that JAX reserves at first, which is also the most it can have: 75% by default
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", str(USABLE_MEMORY))
    try:
        device = report_of(["-m", "benchmarks.gpu_device"])
    except NotMeasuredError as reason:
        raise UserError(f"JAX's default device does not work: {reason}") from None
    if device["platform"] == "cpu" and not small:
        say("JAX has no GPU here: everything in small sizes, to try it")
        small = True
    file = results or (None if small else page.GPU_RESULTS)
    found = Results(None if file is None else file.absolute(), device)
    say(f"{device['count']} x {device['kind']}; {'nothing is kept' if file is None else f'written to {file}'}")
    began = time.monotonic()
    for name in names:
        measure, usual = PARTS[name]
        limit = seconds or usual
        say(f"{name}: at most {duration(limit)} ({duration(time.monotonic() - began)} so far)")
        rows = {other: page.rows_of(part) for other, part in found.parts.items()}
        found.measure(name, Conditions(device, small, time.monotonic() + limit, rows), measure)
        print(page.printed(found.parts[name]), end="\n\n", flush=True)
    incomplete = [name for name in names if found.parts[name]["missing"]]
    took = duration(time.monotonic() - began)
    say("; ".join([f"measured in {took}", *(f"{name} is not whole" for name in incomplete)]))
    return 1 if incomplete else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"some of: {' '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, help="what each part may take (default: each part's own)")
    parser.add_argument("--small", action="store_true", help="small sizes, to try it; nothing is published")
    parser.add_argument("--results", type=Path, help="a file instead of the published one; the page stays as it is")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started ends, too
    try:
        names = chosen(given.parts, PARTS, "PARTS")
        if given.seconds is not None and given.seconds <= 0:
            raise UserError(f"PART_SECONDS={given.seconds:g}: it must be above 0.")
        return run(names, seconds=given.seconds, small=given.small, results=given.results)
    except (UserError, NotMeasuredError) as error:
        print(f"gpu: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
