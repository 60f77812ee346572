"""The three tiers of the tests: units, processes and proofs; and the guard that keeps units in their process.

A test is a unit test unless it is marked:

    @pytest.mark.process                 starts a program or another process
    @pytest.mark.process(tier="units")   does so too, and is run with the unit tests all the same (one short chain)
    @pytest.mark.proof                   takes long, may start programs: kills at random, reproduction, every experiment

`pytest --tier=units`, `processes` (units and processes), `proofs`; without it all but the proofs run.
"""

import multiprocessing.util
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
TIERS = {
    "units": {"units"},
    "processes": {"units", "processes"},
    "proofs": {"proofs"},
}
SLOW_SECONDS = 10.0
# Files of tests that take minutes each, the longest first: begun last, one of them would run while other workers wait.
LONGEST = (
    "docs/test_commands.py", "benchmarks/test_gpu.py", "study/sweep/test_sweep.py", "distributed/test_partitioning.py",
    "evaluate/test_evaluation.py", "test_chain.py", "faults/test_faults.py", "train/test_adapters.py",
    "study/matrix/test_matrix.py", "models/test_beyond_t5.py", "models/decoding/test_kv_cache.py",
    "models/test_layer_stack.py", "exchange/test_importing.py", "data/stream/test_positions.py",
)  # fmt: skip
# Events of the interpreter (sys.addaudithook) that start a process.
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "multiprocessing"}
# Programs that tell a fact within milliseconds, for a record of the machine.
_FACTS = {"git", "uname", "ldconfig", "sysctl"}

_running: str | None = None  # the test that must not start a process
_started: str | None = None  # what it started nevertheless


def tier_of(item: pytest.Item) -> str:
    """The tier that a test belongs to."""
    if item.get_closest_marker("proof"):
        return "proofs"
    mark = item.get_closest_marker("process")
    return mark.kwargs.get("tier", "processes") if mark else "units"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=list(TIERS), help="which tests to run (tests/tiers.py)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", 'process(tier="processes"): starts a program or another process')
    config.addinivalue_line("markers", "proof: takes long, and is run by hand before publishing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = TIERS.get(config.getoption("tier"), {"units", "processes"})
    left_out = [item for item in items if tier_of(item) not in chosen]
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    kept = [item for item in items if tier_of(item) in chosen]
    items[:] = sorted(kept, key=lambda item: places.get(item.path, len(places)))
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    global _started
    if _running is None or event not in _STARTS:
        return
    program = os.path.basename(os.fsdecode(arguments[0])) if arguments else event
    if program in _FACTS:
        return
    _started = f"{_running} starts a process ({program}) without the mark @pytest.mark.process"
    raise RuntimeError(_started)


def _spawn(path: bytes, args: Any, passfds: Any) -> int:
    """multiprocessing's own way to start a process, which raises no event."""
    sys.audit("multiprocessing", path)
    return _spawnv_passfds(path, args, passfds)


_spawnv_passfds = multiprocessing.util.spawnv_passfds
multiprocessing.util.spawnv_passfds = _spawn
sys.addaudithook(_audit)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch a test with neither mark, its fixtures included."""
    global _running, _started
    marked = item.get_closest_marker("process") or item.get_closest_marker("proof")
    _running, _started = None if marked else item.nodeid, None
    try:
        return (yield)
    finally:
        _running = _started = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, pytest.TestReport]:
    """Fail a test that started a process, also where the code that it tests hid the error."""
    report = yield
    report.tier = tier_of(item)
    if _started and (report.when == "call" or report.failed):
        report.outcome, report.longrepr = "failed", _started
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the unit tests that take too long."""
    seconds: dict[str, float] = {}
    for report in [one for reports in terminalreporter.stats.values() for one in reports]:
        if getattr(report, "tier", None) == "units":
            seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
    slow = sorted((time, name) for name, time in seconds.items() if time > SLOW_SECONDS)
    if slow:
        terminalreporter.section(f"unit tests of more than {SLOW_SECONDS:g} s")
        for time, name in reversed(slow):
            terminalreporter.line(f"{time:6.1f} s  {name}")
