"""bfloat16 against float32: milliseconds a step, and how far the losses of the two drift apart."""

import functools

from benchmarks.harness import Goal, Row, alternate, in_process
from benchmarks.jobs import JOBS
from benchmarks.step import Outcome, described, difference, fixed

STEPS = {"small": 20, "larger": 5}
REPEATS = {"small": 3, "larger": 2}
DTYPES = {"bfloat16": "bfloat16", "float32": "float32"}


def rows(repeats: int | None) -> list[Row]:
    """Each job in both precisions."""
    return [row(name, repeats) for name in STEPS]


def row(name: str, repeats: int | None) -> Row:
    job, outcome = JOBS[name], Outcome()

    def measure(dtype: str) -> float:
        orders = ["--job", name, "--steps", str(STEPS[name]), "--dtype", dtype]
        return outcome.keep(dtype, in_process(["-m", "benchmarks.step_ours", *orders]))

    found = alternate({dtype: functools.partial(measure, dtype) for dtype in DTYPES}, repeats or REPEATS[name])
    facts: dict[str, object] = {}
    if len(outcome.reports) == len(DTYPES):
        losses = {dtype: report["losses"] for dtype, report in outcome.reports.items()}
        facts = {
            "losses": losses,
            "largest_difference_of_losses": difference(losses["float32"], losses["bfloat16"]),
            "memory_bytes": {dtype: report["memory"] for dtype, report in outcome.reports.items()},
        }
    return Row(
        name="bf16", what=f"bfloat16 against float32, {described(job)}", unit="ms",
        fixed=fixed(job).replace("float32; ", "t5xpg; parameters in float32; "), found=found,
        goal=Goal(at_least=1.3, against="float32"), facts=facts,
    )  # fmt: skip
