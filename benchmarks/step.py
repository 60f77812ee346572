"""The training step: ours, plain JAX, transformers on PyTorch (eager and compiled), T5X where one has it, and the
floor: the matrix products of our step alone.

All but the floor are given the same weights and the same packed batches, so their losses are compared too. Each dtype
has rows of its own, with the peers in that dtype.
"""

import functools
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import PEERS_PYTHON, Found, Goal, NotMeasuredError, Row, alternate_reports, report_of
from benchmarks.jobs import JOBS, Job

OURS, PLAIN, EAGER, COMPILED, T5X = "t5xpg", "plain JAX", "transformers, eager", "transformers, torch.compile", "T5X"
FLOOR = "its matrix products alone"
DTYPES = BFLOAT16, FLOAT32 = "bfloat16", "float32"
T5X_PYTHON = "T5X_PYTHON"
T5X_MISSING = f"not installed: it is in no package registry; {T5X_PYTHON}=/path/to/python names one that has it"
PROGRAMS = {  # of the contestants, with their first options
    OURS: ["benchmarks.ours", "step"],
    PLAIN: ["benchmarks.step_plain_jax"],
    EAGER: ["benchmarks.in_transformers", "step", "--option", "eager"],
    COMPILED: ["benchmarks.in_transformers", "step", "--option", "default"],
    T5X: ["benchmarks.step_t5x"],
    FLOOR: ["benchmarks.step_products"],
}
STEPS = {"small": 10, "larger": 3}
REPEATS = {"small": 3, "larger": 2}
CONTESTANTS = {  # the slower ones only for the small job in float32, as they take long
    ("small", BFLOAT16): (OURS, COMPILED, T5X, FLOOR),
    ("small", FLOAT32): (OURS, PLAIN, EAGER, COMPILED, T5X, FLOOR),
    ("larger", BFLOAT16): (OURS, COMPILED, FLOOR),
    ("larger", FLOAT32): (OURS, COMPILED, FLOOR),
}
GOALS = {  # times as fast as torch.compile
    ("small", BFLOAT16): 1.5, ("small", FLOAT32): 1.2, ("larger", BFLOAT16): 1.3, ("larger", FLOAT32): 1.2,
}  # fmt: skip
FASTER_BY_BFLOAT16 = {"small": 1.4, "larger": 1.6}


def rows(repeats: int | None) -> list[Row]:
    """Milliseconds a step of the two jobs in both dtypes, and of ours in one against the other."""
    return [row for name in STEPS for row in rows_of(name, repeats)]


def rows_of(name: str, repeats: int | None) -> list[Row]:
    job = JOBS[name]
    options = ["--job", name, "--repeats", str(STEPS[name]), "--dtype"]
    contestants = {
        f"{each}, {dtype}": functools.partial(report, each, [*options, dtype])
        for dtype in DTYPES
        for each in CONTESTANTS[name, dtype]
    }
    found, reports = alternate_reports(contestants, "ms", repeats or REPEATS[name])
    of_dtype = {dtype: {f"{each}, {dtype}": each for each in CONTESTANTS[name, dtype]} for dtype in DTYPES}
    return [
        *(
            Row(
                name="step", what=f"training step in {dtype}, {described(job)}", unit="ms", fixed=fixed(job),
                found=found.renamed(names), goal=Goal(at_least=GOALS[name, dtype], against=COMPILED),
                facts=facts(job, {each: reports[one] for one, each in names.items() if one in reports}),
            )
            for dtype, names in of_dtype.items()
        ),
        Row(
            name="step", what=f"bfloat16 against float32, {described(job)}", unit="ms", fixed=f"t5xpg; {fixed(job)}",
            found=Found(found.renamed({f"{OURS}, {dtype}": dtype for dtype in DTYPES}).values),
            goal=Goal(at_least=FASTER_BY_BFLOAT16[name], against=FLOAT32),
        ),
    ]  # fmt: skip


def report(contestant: str, options: Sequence[str]) -> dict[str, Any]:
    """What a contestant reports of its steps."""
    python: Path | str | None = PEERS_PYTHON if contestant in (EAGER, COMPILED) else sys.executable
    if contestant == T5X and (python := shutil.which(os.environ.get(T5X_PYTHON, ""))) is None:
        raise NotMeasuredError(T5X_MISSING)
    return report_of(["-m", *PROGRAMS[contestant], *options], python=python)


def facts(job: Job, reports: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """FLOPs and tokens of a step, memory, versions, and the largest difference between each peer's losses and ours."""
    reports = {name: report for name, report in reports.items() if name != FLOOR}
    found: dict[str, Any] = {
        "flops": job.flops(),
        "tokens": job.tokens,
        "memory_bytes": {name: report["memory"] for name, report in reports.items()},
        "versions": {name: report["versions"] for name, report in reports.items() if "versions" in report},
    }
    losses = {name: report["losses"] for name, report in reports.items()}
    if (ours := losses.pop(OURS, None)) is not None:
        found["losses"] = {OURS: [ours[0], ours[-1]]}
        found["largest_difference_of_losses"] = {name: difference(ours, theirs) for name, theirs in losses.items()}
    return found


def difference(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """The largest relative difference between two lists of numbers."""
    return max(abs(a - b) / abs(a) for a, b in zip(ours, theirs, strict=True))


def described(job: Job) -> str:
    return f"emb {job.emb}, mlp {job.mlp}, batch {job.batch} x {job.inputs}/{job.targets}"


def fixed(job: Job) -> str:
    return (
        f"{job.encoder_layers}+{job.decoder_layers} layers, {job.heads} heads of {job.head_dim}, {job.vocabulary} ids; "
        "parameters in float32; AdamW; z-loss; packed masks; dropout 0; same weights and batches; all cores"
    )
