"""The training step: ours, plain JAX, transformers on PyTorch (eager and compiled), T5X where one has it, and the
floor: the matrix products of our step alone.

All but the floor are given the same weights and the same packed batches, so their losses are compared too. Each dtype
has rows of its own, with the peers in that dtype.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.harness import PEERS_PYTHON, Found, Goal, NotMeasuredError, Row, alternate, report_of
from benchmarks.jobs import JOBS, Job

OURS, PLAIN, EAGER, COMPILED, T5X = "t5xpg", "plain JAX", "transformers, eager", "transformers, torch.compile", "T5X"
FLOOR = "its matrix products alone"
BFLOAT16, FLOAT32 = "bfloat16", "float32"
T5X_PYTHON = "T5X_PYTHON"
T5X_MISSING = f"not installed: it is in no package registry; {T5X_PYTHON}=/path/to/python names one that has it"
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
    reports: dict[str, dict[str, dict[str, Any]]] = {BFLOAT16: {}, FLOAT32: {}}
    contestants = {
        f"{each}, {dtype}": measurement(each, name, dtype, reports[dtype])
        for dtype in reports
        for each in CONTESTANTS[name, dtype]
    }
    found = alternate(contestants, repeats or REPEATS[name])
    of_dtype = {
        dtype: found.renamed({f"{each}, {dtype}": each for each in CONTESTANTS[name, dtype]}) for dtype in reports
    }
    return [
        *(
            Row(
                name="step", what=f"training step in {dtype}, {described(job)}", unit="ms", fixed=fixed(job),
                found=of_dtype[dtype], goal=Goal(at_least=GOALS[name, dtype], against=COMPILED),
                facts=facts(job, reports[dtype]),
            )
            for dtype in reports
        ),
        Row(
            name="step", what=f"bfloat16 against float32, {described(job)}", unit="ms", fixed=f"t5xpg; {fixed(job)}",
            found=Found({dtype: of_dtype[dtype].values[OURS] for dtype in reports if OURS in of_dtype[dtype].values}),
            goal=Goal(at_least=FASTER_BY_BFLOAT16[name], against=FLOAT32),
        ),
    ]  # fmt: skip


def measurement(contestant: str, job: str, dtype: str, reports: dict[str, dict[str, Any]]) -> Callable[[], float]:
    """A function that measures a contestant once, keeps its report, and returns its milliseconds a step."""
    options = ["--job", job, "--repeats", str(STEPS[job]), "--dtype", dtype]
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        OURS: lambda: report_of(["-m", "benchmarks.ours", "step", *options]),
        PLAIN: lambda: report_of(["-m", "benchmarks.step_plain_jax", *options]),
        EAGER: lambda: transformers([*options, "--option", "eager"]),
        COMPILED: lambda: transformers([*options, "--option", "default"]),
        T5X: lambda: t5x(options),
        FLOOR: lambda: report_of(["-m", "benchmarks.step_products", *options]),
    }

    def measure() -> float:
        report = measures[contestant]()
        if contestant != FLOOR:
            reports[contestant] = report
        return float(report["ms"])

    return measure


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
    return report_of(["-m", "benchmarks.in_transformers", "step", *options], python=PEERS_PYTHON)


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
        "parameters in float32; AdamW; z-loss; packed masks; dropout 0; same weights and batches; all cores"
    )
