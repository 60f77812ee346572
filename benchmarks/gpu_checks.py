"""Whether a device computes what it should: the unit tests on it, and the same updates as on the CPU.

Parts of `make gpu`: generators of rows. JAX_DEFAULT_MATMUL_PRECISION=highest is set, or GPUs multiply float32 as TF32.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import decoding
from benchmarks.gpu_device import Conditions, row
from benchmarks.harness import REPOSITORY, Goal, NotMeasuredError, Row, alternate, say
from benchmarks.jobs import JOBS
from benchmarks.step import described, difference

EXACT = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
ON_CPU = EXACT | {"JAX_PLATFORMS": "cpu"}

_STRICT = ["-p", "tests.models.conftest"]
UNITS = {
    "tests/models": ["tests/models", "--ignore=tests/models/decoding", *_STRICT],
    "tests/models/decoding": ["tests/models/decoding", *_STRICT],
    "tests/optim": ["tests/optim"],
}
SMALL_UNITS = {"tests/optim/test_schedules.py": ["tests/optim/test_schedules.py"]}
# Left out, as these tests start programs and check nothing that depends on the device.
NOT_OF_DEVICES = ("tests/models/test_architectures.py", "tests/models/test_custom_architecture.py")
_VERDICTS = "PASSED|FAILED|ERROR|SKIPPED"
TEST = re.compile(rf"tests/\S+\.py::.*?(?=\s+(?:{_VERDICTS})\b|\s*$)")
VERDICT = re.compile(rf"\b({_VERDICTS})\b")

PARITY = {"small": 6, "a layer of t5_1_1_base": 4}  # updates; the two before them that warm up are compared, too
SMALL_PARITY = {"small": 1}
MOST = {"losses": 1e-4, "gradient_norms": 1e-3}  # relative difference of float32


def units(given: Conditions) -> Iterator[Row]:
    """The unit tests of models, losses, decoding and optimisers, with the accelerator as JAX's default device."""
    for name, paths in (SMALL_UNITS if given.small else UNITS).items():
        outcomes: dict[str, str] = {}

        def failures(paths: list[str] = paths, outcomes: dict[str, str] = outcomes) -> float:
            _run_tests(given, paths, outcomes)
            return float(sum(verdict in ("FAILED", "ERROR") for verdict in outcomes.values()))

        say(f"  {name}: running; failed tests:")
        found = alternate({"t5xpg": failures}, 1)
        failed = sorted(test for test, verdict in outcomes.items() if verdict in ("FAILED", "ERROR"))
        passed = list(outcomes.values()).count("PASSED")
        yield row(
            "units", f"unit tests on the device, {name}", "failed", found, goal=Goal(at_most=0.0),
            fixed="float32 products at the highest precision",
            facts={"note": "; ".join([f"{passed} passed", *(f"failed: {test}" for test in failed)])},
        )  # fmt: skip


def _run_tests(given: Conditions, paths: list[str], outcomes: dict[str, str]) -> None:
    """Run tests; `outcomes` gets the verdict of each test that has ended, even if the time ends before the last one.

    Raises NotMeasuredError where they do not come to their end.
    """
    if importlib.util.find_spec("pytest") is None:
        raise NotMeasuredError("pytest is not installed in this Python")
    workers = min(8, (os.cpu_count() or 1) // 2)
    several = ["-n", str(workers), "--dist", "loadfile"] if workers > 1 and importlib.util.find_spec("xdist") else []
    # tests/conftest.py downloads text, and lets XLA compile fast rather than well
    plugins = ["--noconftest", "-p", "tests.tiers", "--tier=units"]
    printed = ["-o", "addopts=--import-mode=importlib", "-v", "-rN", "--tb=line"]
    arguments = [*plugins, *printed, *several, *paths, *(f"--ignore={path}" for path in NOT_OF_DEVICES)]
    variables = {**os.environ, **EXACT, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as log:
        try:
            code = subprocess.run(
                [sys.executable, "-m", "pytest", *arguments], cwd=REPOSITORY, env=variables, timeout=given.left,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False,
            ).returncode  # fmt: skip
            reason = None if code in (0, 1) else f"pytest ended with {code}"
        except subprocess.TimeoutExpired as error:
            reason = f"took more than {error.timeout:.0f} s"
        log.seek(0)
        lines = log.read().splitlines()
    for line in lines:
        test, verdict = TEST.search(line), VERDICT.search(line)
        if test and verdict:
            outcomes[test[0]] = verdict[0]
    if reason or not outcomes:
        ending = f": {lines[-1]}" if lines and not outcomes else ""
        raise NotMeasuredError(f"{reason or 'nothing was run'}, after {len(outcomes)} tests{ending}")


def parity(given: Conditions) -> Iterator[Row]:
    """The same updates and the same greedy decoding on the CPU and on the device."""
    kinds: Mapping[str, tuple[str, Mapping[str, str]]] = {
        "CPU, float32": ("float32", ON_CPU),
        "device, float32": ("float32", EXACT),
        "device, bfloat16": ("bfloat16", {}),
    }
    for name, steps in (SMALL_PARITY if given.small else PARITY).items():
        reports = []
        for kind, (dtype, environment) in kinds.items():
            options = ("--job", name, "--repeats", str(steps), "--dtype", dtype)
            reports.append(given.run("benchmarks.ours", "step", *options, environment=environment))
            say(f"  {name}, {kind}: the losses {', '.join(f'{loss:.6f}' for loss in reports[-1]['losses'])}")
            if kind != "CPU, float32":
                yield from _differences(name, dtype, reports[0], reports[-1])
    tiny, answers = JOBS[decoding.TINY], []
    options = ("decoding", "--job", decoding.TINY, "--repeats", "1")
    for environment in (ON_CPU, EXACT):
        decoded = given.run("benchmarks.ours", *options, environment=environment)
        answers.append(decoded["answer"])
    differing = sum(one != other for one, other in zip(*answers, strict=True))
    say(f"  greedy decoding: {differing} of {tiny.batch} rows differ")
    yield row(
        "parity", f"device against CPU, {decoding.described(tiny)}", "rows that differ", float(differing),
        fixed="float32 at the highest precision; random weights", goal=Goal(at_most=0.0),
    )  # fmt: skip


def _differences(name: str, dtype: str, cpu: Mapping[str, Any], device: Mapping[str, Any]) -> Iterator[Row]:
    """The largest relative differences of losses and of gradient norms; both series are among the facts."""
    for series in ("losses", "gradient_norms") if dtype == "float32" else ("losses",):
        values = {"cpu": cpu[series], "device": device[series]}
        yield row(
            "parity", f"device in {dtype} against CPU in float32, {name}: {series.replace('_', ' ')}",
            "largest relative difference", difference(*values.values()), facts=values,
            fixed=f"{described(JOBS[name])}; {len(cpu['losses'])} updates by AdamW; float32 at the highest precision",
            goal=Goal(at_most=MOST[series]) if dtype == "float32" else None,
        )  # fmt: skip
