"""From the start of the program to the end of its first step; its memory."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import memory
from benchmarks.harness import REPOSITORY, Found, Goal, NotMeasuredError, Row, alternate, output_of
from t5xpg.base.malloc import TUNABLES
from t5xpg.base.phases import VARIABLE as PHASES

EXPERIMENT = "optimizers_tiny"
ADAMW = "--gin_file=gin/optimizers/adamw.gin"
MEMORY_STEPS = 40  # with two evaluations after the one at the start, and two checkpoints
REPEATS = 3
_SECONDS = 180.0


def rows(repeats: int | None) -> list[Row]:
    """Seconds of starts, seconds of small commands, and megabytes of a training run."""
    count = repeats or REPEATS
    compiled = alternate({"compiled": measure_start}, count)
    shown = alternate({"help": lambda: measure_command("--help")}, count)
    checked = alternate({"check": lambda: measure_command("check", EXPERIMENT, "--run=benchmark_of_start")}, count)
    trainers: list[float] = []

    def measure_both() -> float:
        everything, trainer = measure_memory()
        trainers.append(trainer / 1e6)
        return everything / 1e6

    everything = alternate({"all processes": measure_both}, repeats or 1)  # runs of one day differ by 1%
    trainer = Found({"trainer": trainers}, everything.renamed({"all processes": "trainer"}).missing)
    fixed = f"{EXPERIMENT}, AdamW, float32, warm bytecode, check of the experiment included, all cores"
    steps = f"{fixed}; {MEMORY_STEPS} steps"
    return [
        Row(name="start", what=what, unit=unit, fixed=fixed, found=found, goal=Goal(at_most=limit))
        for what, unit, fixed, found, limit in (
            ("start to first step done, compiling", "s", fixed, compiled, 7.0),
            ("t5xpg --help", "s", "warm bytecode", shown, 0.5),
            ("t5xpg check", "s", f"{EXPERIMENT}, warm bytecode", checked, 5.0),
            ("peak memory of all processes (PSS)", "MB", steps, everything, 1200.0),
            ("peak memory of the trainer (PSS)", "MB", steps, trainer, 700.0),
        )
    ]


def measure_start() -> float:
    """Seconds from the start of `t5xpg train` to the end of its first update."""
    with tempfile.TemporaryDirectory() as folder:
        reading, writing = os.pipe()
        began = time.perf_counter()
        with _training(Path(folder), {PHASES: str(writing)}, (writing,)):
            os.close(writing)
            stepping = False
            with os.fdopen(reading) as marks:
                for mark in marks:
                    now = time.perf_counter()
                    stepping |= mark == "begin step 1\n"
                    if stepping and mark in ("end step 1\n", "begin evaluate 0\n"):
                        return now - began
    raise NotMeasuredError("the training ended before its first step")


def measure_memory() -> tuple[int, int]:
    """The largest proportional set sizes of a training run in bytes: of all processes together, and of the trainer."""
    with tempfile.TemporaryDirectory() as folder:
        steps = f"--gin.TRAIN_STEPS={MEMORY_STEPS} --gin.EVAL_PERIOD=20 --gin.CHECKPOINT_PERIOD=20 --gin.WARMUP_STEPS=5"
        with _training(Path(folder), {}, (), f"--gin-overrides={steps}") as process:
            peak = memory.Peak(process.pid)
            if process.wait(timeout=_SECONDS):
                raise NotMeasuredError(f"the training ended with exit code {process.returncode}")
    return peak.total, peak.own


def measure_command(*words: str) -> float:
    """Seconds of `t5xpg <words>`."""
    began = time.perf_counter()
    output_of(["-m", "t5xpg", *words])
    return time.perf_counter() - began


@contextlib.contextmanager
def _training(
    folder: Path, variables: Mapping[str, str], descriptors: tuple[int, ...], *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A training run in `folder`, which is killed when the block ends."""
    environment = {**os.environ, "GLIBC_TUNABLES": TUNABLES, **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, no start would find bytecode
    process = subprocess.Popen(
        [sys.executable, "-m", "t5xpg", "train", EXPERIMENT, ADAMW, *options, f"--run={folder / 'run'}"],
        cwd=REPOSITORY, env=environment, pass_fds=descriptors, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
