"""The training step: ours, plain JAX, transformers on PyTorch (eager and compiled), T5X where one has it, and the
floor: the matrix products of our step alone.

All but the floor are given the same weights and the same packed batches, so their losses are compared too. Ours is
measured in bfloat16 as well, which has a row of its own.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.harness import PEERS_PYTHON, Goal, NotMeasuredError, Row, alternate, report_of
from benchmarks.jobs import JOBS, Job

OURS, PLAIN, EAGER, COMPILED, T5X = "t5xpg", "plain JAX", "transformers, eager", "transformers, torch.compile", "T5X"
FLOOR = "its matrix products alone"
BFLOAT16, FLOAT32 = "bfloat16", "float32"
T5X_PYTHON = "T5X_PYTHON"
T5X_MISSING = f"not installed: it is in no package registry; {T5X_PYTHON}=/path/to/python names one that has it"
STEPS = {"small": 10, "larger": 3}
REPEATS = {"small": 3, "larger": 2}
CONTESTANTS = {  # the slower ones only for the small job, as they take long
    "small": (OURS, PLAIN, EAGER, COMPILED, T5X, FLOOR, BFLOAT16),
    "larger": (OURS, COMPILED, FLOOR, BFLOAT16),
}


def rows(repeats: int | None) -> list[Row]:
    """Milliseconds a step of the two jobs, and of ours in both precisions."""
    return [row for name in STEPS for row in rows_of(name, repeats)]


def rows_of(name: str, repeats: int | None) -> list[Row]:
    job = JOBS[name]
    options = ["--job", name, "--steps", str(STEPS[name])]
    reports: dict[str, dict[str, Any]] = {}

    def keep(contestant: str, report: dict[str, Any]) -> float:
        reports[contestant] = report
        return float(report["ms"])

    contestants: dict[str, Callable[[], float]] = {
        OURS: lambda: keep(OURS, report_of(["-m", "benchmarks.step_ours", *options])),
        PLAIN: lambda: keep(PLAIN, report_of(["-m", "benchmarks.step_plain_jax", *options])),
        EAGER: lambda: keep(EAGER, transformers([*options, "--option", "eager"])),
        COMPILED: lambda: keep(COMPILED, transformers([*options, "--option", "default"])),
        T5X: lambda: keep(T5X, t5x(options)),
        FLOOR: lambda: float(report_of(["-m", "benchmarks.step_products", *options])["ms"]),
        BFLOAT16: lambda: keep(BFLOAT16, report_of(["-m", "benchmarks.step_ours", *options, "--dtype", "bfloat16"])),
    }
    contestants = {each: measure for each, measure in contestants.items() if each in CONTESTANTS[name]}
    found = alternate(contestants, repeats or REPEATS[name])
    return [
        Row(
            name="step", what=f"training step, {described(job)}", unit="ms", fixed=fixed(job),
            found=found.renamed({each: each for each in contestants if each != BFLOAT16}),
            goal=Goal(at_least=1.5, against=COMPILED), facts=facts(job, reports),
        ),
        Row(
            name="step", what=f"bfloat16 against float32, {described(job)}", unit="ms",
            fixed=fixed(job).replace("float32; ", "t5xpg; parameters in float32; "),
            found=found.renamed({BFLOAT16: BFLOAT16, OURS: FLOAT32}), goal=Goal(at_least=1.3, against=FLOAT32),
        ),
    ]  # fmt: skip


def facts(job: Job, reports: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """FLOPs and tokens of a step, memory, versions, and the largest difference between each peer's losses and ours."""
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


def transformers(options: list[str]) -> dict[str, Any]:
    """Run the contestant in the peers' environment."""
    return report_of(["-m", "benchmarks.step_transformers", *options], python=PEERS_PYTHON)


def t5x(options: list[str]) -> dict[str, Any]:
    python = shutil.which(os.environ.get(T5X_PYTHON, ""))
    if not python:
        raise NotMeasuredError(T5X_MISSING)
    return report_of(["-m", "benchmarks.step_t5x", *options], python=python)


def described(job: Job) -> str:
    return f"emb {job.emb}, mlp {job.mlp}, batch {job.batch} x {job.inputs}/{job.targets}"


def fixed(job: Job) -> str:
    return (
        f"{job.encoder_layers}+{job.decoder_layers} layers, {job.heads} heads of {job.head_dim}, {job.vocabulary} ids; "
        "float32; AdamW; z-loss; packed masks; dropout 0; same weights and batches; all cores"
    )
