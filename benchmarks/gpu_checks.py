"""Whether a device computes what it should: the unit tests on it, and the same updates as on the CPU.

Parts of `make gpu`: generators of rows. JAX_DEFAULT_MATMUL_PRECISION=highest is set, or GPUs multiply float32 as TF32.
"""

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks import decoding
from benchmarks.gpu_device import Conditions, row
from benchmarks.harness import REPOSITORY, Goal, NotMeasuredError, Row, alternate_reports, say
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
PARITY = {"small": 6, "a layer of t5_1_1_base": 4}  # updates; the two before them that warm up are compared, too
SMALL_PARITY = {"small": 1}
MOST = {"losses": 1e-4, "gradient_norms": 1e-3}  # relative difference of float32


def units(given: Conditions) -> Iterator[Row]:
    """The unit tests of models, losses, decoding and optimisers, with the accelerator as JAX's default device."""
    for name, paths in (SMALL_UNITS if given.small else UNITS).items():
        say(f"  {name}: running; failed tests:")
        found, reports = alternate_reports({"t5xpg": functools.partial(_failed_tests, given, paths)}, "count", 1)
        failed = [f"failed: {test}" for report in reports.values() for test in report["tests"]]
        yield row(
            "units", f"unit tests on the device, {name}", "failed", found,
            fixed="float32 products at the highest precision", goal=Goal(at_most=0.0),
            facts={"note": "; ".join(failed)} if failed else {},
        )  # fmt: skip


def _failed_tests(given: Conditions, paths: list[str]) -> dict[str, Any]:
    """Run tests; {"count" of those that fail, "tests": their names}. Raises NotMeasuredError where they do not come to
    their end."""
    if importlib.util.find_spec("pytest") is None:
        raise NotMeasuredError("pytest is not installed in this Python")
    workers = min(8, (os.cpu_count() or 1) // 2)
    several = ["-n", str(workers), "--dist", "loadfile"] if workers > 1 and importlib.util.find_spec("xdist") else []
    # tests/conftest.py downloads text, and lets XLA compile fast rather than well
    plugins = ["--noconftest", "-p", "tests.tiers", "--tier=units"]
    variables = {**os.environ, **EXACT, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tests.xml"
        printed = ["-o", "addopts=--import-mode=importlib", "-q", "--tb=line", f"--junitxml={file}"]
        arguments = [*plugins, *printed, *several, *paths, *(f"--ignore={path}" for path in NOT_OF_DEVICES)]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *arguments], cwd=REPOSITORY, env=variables, timeout=given.left,
                stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise NotMeasuredError(f"took more than {error.timeout:.0f} s") from None
        if done.returncode not in (0, 1):
            raise NotMeasuredError(f"pytest ended with {done.returncode}")
        cases = ElementTree.parse(file).iter("testcase")
        failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
        return {"count": len(failed), "tests": [f"{case.get('classname')}::{case.get('name')}" for case in failed]}


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
