"""Whole runs on a device: whether a killed run continues exactly, and which loss and speed a real training reaches.

Parts of `make gpu`: generators of rows. Training reads its data with TensorFlow; where that is missing, recorded
batches take its place, which `python -m benchmarks.gpu --record FOLDER` writes on a machine that has it.
"""

import contextlib
import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_device import Conditions, row
from benchmarks.gpu_speed import DTYPE, SMALL
from benchmarks.harness import REPOSITORY, Found, Goal, NotMeasuredError, Row, output_of, say
from t5xpg.base.files import last_lines, read_json
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import read_jsonl

DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
KILLS, SMALL_KILLS = 20, 1
SAYING, ENDING = 15.0, 90.0  # seconds between lines on a run; and that a run has at most to save and end
NEVER = 1_000_000
WARM_UP = 10  # updates of a training that are not counted


@dataclass(frozen=True)
class Training:
    """An experiment with overrides, and how many of its batches a recording holds."""

    experiment: str
    gin: Sequence[str]
    recorded: int

    @property
    def text(self) -> str:
        return " ".join([self.experiment, *self.gin])

    def command(self, name: str, *more: str) -> list[str]:
        return ["-m", "t5xpg", name, self.experiment, *self.gin, *more]


# RESUMED: a model whose steps last long enough for kills to fall into them. TRAINED: ByT5 small with the shapes of its
# experiment for one GPU.
_SAVING = ["--gin.TRAIN_STEPS=60", "--gin.CHECKPOINT_PERIOD=10", "--gin.EVAL_PERIOD=20", "--gin.EVAL_STEPS=2"]
_SMALL_SAVING = ["--gin.TRAIN_STEPS=20", "--gin.CHECKPOINT_PERIOD=5", "--gin.EVAL_PERIOD=10", "--gin.EVAL_STEPS=2"]
_ONLY_TRAINING = [f"--gin.EVAL_PERIOD={NEVER}", "--gin.EVAL_STEPS=1", f"--gin.CHECKPOINT_PERIOD={NEVER}"]
_TINY = ["--gin.BATCH_SIZE=2", "--gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 32}"]
RESUMED = Training("optimizers_tiny", ["--gin_file=gin/models/byt5_mini.gin", "--gin.BATCH_SIZE=64", *_SAVING], 60)
SMALL_RESUMED = Training("optimizers_tiny", [*_TINY, *_SMALL_SAVING], 20)
TRAINED = Training(
    "byt5_small_wikitext_gpu",
    ["--gin.MIXTURE_OR_TASK_NAME='pydocs_span_corruption'", "--gin.NUM_MICROBATCHES=8", "--gin.STATS_PERIOD=5",
     *_ONLY_TRAINING],
    300,
)  # fmt: skip
SMALL_TRAINED = Training("optimizers_tiny", [*_TINY, "--gin.STATS_PERIOD=5", *_ONLY_TRAINING], 40)


def resume(given: Conditions) -> Iterator[Row]:
    """Whether killed runs equal an unbroken one with deterministic operations, and what these operations cost."""
    training, source = SMALL_RESUMED if given.small else RESUMED, _source(given, "resume")
    flags = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {DETERMINISTIC}".strip()}
    kills = SMALL_KILLS if given.small else KILLS
    say(f"  {training.experiment}: killing {kills} times or more")
    receipt = _proof(given, training, kills, flags | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, source)
    counts = ", ".join(f"{phase} {count}" for phase, count in receipt["kills"]["by_phase"].items())
    note = "; ".join([f"{receipt['kills']['dealt']} kills: {counts}", *receipt["differences"]])
    say(f"  {note}: {'exact' if receipt['proven'] else 'NOT exact'}")
    yield row(
        "resume", "killed runs against an unbroken one: differences", "differences",
        float(len(receipt["differences"])), fixed=f"{training.text}; XLA_FLAGS={DETERMINISTIC}", goal=Goal(at_most=0.0),
        facts={"note": note, "equal": sorted(receipt["equal"])},
    )  # fmt: skip
    job, steps = (SMALL, 2) if given.small else ("t5_1_1_small", 20)
    times = {}
    for name, variables in (("deterministic", flags), ("as it is", {})):
        options = ["--job", job, "--dtype", DTYPE, "--steps", str(steps)]
        times[name] = given.run("benchmarks.step_ours", *options, environment=variables)["each_ms"]
        say(f"  a step of {job}, {name}: {statistics.median(times[name]):.1f} ms")
    yield row("resume", f"training step of {job}, deterministic operations or not", "ms", Found(times), fixed=DTYPE)


def _proof(
    given: Conditions, training: Training, kills: int, variables: Mapping[str, str], source: Sequence[str]
) -> dict[str, Any]:
    """The receipt of `make prove-resume`; there is one, too, if the runs were not equal."""
    with tempfile.TemporaryDirectory() as folder:
        log, receipt = Path(folder) / "proof.log", Path(folder) / "proof" / "receipt.json"
        command = training.command("prove-resume", f"--kills={kills}", f"--run={folder}/proof", *source)
        with _started(command, log, variables) as process:
            _watch(process, given.left, lambda: (last_lines(log, 1) or ["starting"])[-1])
        if not receipt.exists():
            raise NotMeasuredError(_failure(process, given, log))
        return dict(read_json(receipt))


def train(given: Conditions) -> Iterator[Row]:
    """A real training, for as long as the part has time: its loss, and its loop against the step alone."""
    training, source = SMALL_TRAINED if given.small else TRAINED, _source(given, "train")
    if given.recordings is not None:
        from t5xpg.data.recording.manifest import read_recording

        batches = read_recording(given.recordings / "train").streams["train"].batches
        source = [*source, f"--gin.TRAIN_STEPS={batches}"]
    elif not given.small:
        source = [f"--gin.TRAIN_STEPS={NEVER}"]
    say(f"  {training.experiment}: the step alone")
    bare = given.run("benchmarks.loop_bare", training.experiment, "20", " ".join(training.gin))["ms"]
    say(f"  the step alone: {bare:.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder) / "run")
        _train(training.command("train", f"--run={run.path}", *source), run, given)
        losses = _losses(run)
        times = [one for one in read_jsonl(run.timing_jsonl) if "seconds_per_step" in one]
    counted = [one for one in times if one["step"] > WARM_UP]
    if not counted:
        raise NotMeasuredError(f"{len(times)} records of {training.experiment} in its time: too few")

    def of(fact: str, factor: float = 1.0) -> Found:
        return Found({"train": [factor * one[fact] for one in counted if one[fact] is not None]})

    what = f"training of {training.experiment} on pydocs"
    (first, before), (last, after) = losses[0], losses[-1]
    note = f"{before:.3f} after {first} updates, {after:.3f} after {last:,}"
    data = "recorded batches" if given.recordings else "live data"
    fixed = f"{training.text}; {data}; rates of what follows {WARM_UP} updates"
    alone = Found({**of("seconds_per_step", 1000.0).values, "the step alone": [bare]})
    goal = Goal(at_least=0.97, against="the step alone")
    yield row("train", f"{what}: last loss", "nats a token", after, fixed=fixed, facts={"note": note, "losses": losses})
    yield row("train", f"{what}: an update", "ms", alone, fixed=fixed, goal=goal)
    yield row("train", f"{what}: padded tokens", "tokens/s", of("tokens_per_second"), fixed=fixed, better="higher")
    yield row("train", f"{what}: MFU", "%", of("share_of_peak", 100.0), fixed=fixed, better="higher")
    yield row(
        "train", f"{what}: waiting for data", "%", of("waited_for_data", 100.0), fixed=fixed, goal=Goal(at_most=1.0)
    )


def _losses(run: RunDirectory) -> list[tuple[int, float]]:
    """For every training record, the number of updates so far, and the mean loss that it holds."""
    return [(one["step"], one["loss"]) for one in read_jsonl(run.metrics_jsonl) if one["split"] == "train"]


def _train(arguments: Sequence[str], run: RunDirectory, given: Conditions) -> None:
    """Train until the end, or until the time is nearly over; the run is then saved and keeps its records."""

    def reached() -> str:
        losses = _losses(run)
        return f"update {losses[-1][0]:,}, loss {losses[-1][1]:.3f}" if losses else "starting"

    log = run.path.with_suffix(".log")
    with _started(arguments, log) as process:
        _watch(process, given.left - min(ENDING, given.left / 2), reached)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # so it saves, and its records are whole
            _watch(process, given.left, lambda: "saving")
    if process.returncode not in (0, 128 + signal.SIGTERM):
        raise NotMeasuredError(_failure(process, given, log))


@contextlib.contextmanager
def _started(
    arguments: Sequence[str], log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program. It and all that it has started hold memory of the device: all are killed when the block ends."""
    with log.open("wb") as printed:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=REPOSITORY, env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _watch(process: subprocess.Popen[bytes], seconds: float, reached: Callable[[], str]) -> None:
    """Wait until a program ends or the time is over, and say now and then how far it is."""
    ends, said = time.monotonic() + seconds, ""
    while process.poll() is None and (left := ends - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(SAYING, left))
        if process.poll() is None and (line := reached()) != said:
            said = line
            say(f"  {said}")


def _failure(process: subprocess.Popen[bytes], given: Conditions, log: Path) -> str:
    """Why a program has not done what it should: its last line, or that its time was over."""
    if process.returncode == -signal.SIGKILL and time.monotonic() >= given.ends:
        return "it did not come to its end in the time of this part"
    return f"failed with {process.returncode}: {' '.join(last_lines(log, 1))}"[:200]


def _source(given: Conditions, name: str) -> list[str]:
    """The option to read recorded batches, if given; else none, or NotMeasuredError without TensorFlow and SeqIO."""
    if given.recordings is not None:
        return [f"--recorded={(given.recordings / name).absolute()}"]
    lacking = [library for library in ("tensorflow", "seqio") if importlib.util.find_spec(library) is None]
    if lacking:
        raise NotMeasuredError(f"{' and '.join(lacking)} cannot be imported here, and no recordings were given")
    return []


def record(folder: Path, *, small: bool) -> None:
    """Write the batches that `train` and `resume` read, into folders of these names."""
    for name, training in (
        ("train", SMALL_TRAINED if small else TRAINED),
        ("resume", SMALL_RESUMED if small else RESUMED),
    ):
        say(f"recording {training.recorded} batches of {training.experiment} for {name}")
        output = (folder / name).absolute()
        say(output_of(training.command("record", f"--steps={training.recorded}", f"--output={output}")).strip())
