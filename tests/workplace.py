"""A small workplace in which the program runs as a user runs it, and what is compared of its runs."""

import importlib.util
import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from t5xpg import cli
from t5xpg.base import files
from tests.refusals import assert_named

# Programs of a few steps take longer to compile than to run; what they compute is held by the tests to tolerances, or
# compared with another of them. test_chain.py does without this, as users do. XLA cannot store programs with oneDNN's
# products, which the programs of several tests share.
FAST_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_experimental_onednn_custom_call=false"
)

REPOSITORY = Path(__file__).resolve().parents[1]
# Seconds that a test waits for a program, also on a slow machine: only a program that hangs takes longer.
PATIENCE = 1800.0
DEAD = 2**22 + 1  # the number of no process: more than Linux gives

EXPERIMENT = """
from __gin__ import dynamic_registration
from t5xpg.models import encoder_decoder
include 'gin/models/byt5_tiny.gin'
include 'gin/optimizers/adamw.gin'
include 'gin/partitioning/one_device.gin'
include 'gin/runs/pretrain.gin'

MIXTURE_OR_TASK_NAME = 'small_span_corruption'
TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 32}
TRAIN_STEPS = 12
BATCH_SIZE = 4
RANDOM_SEED = 7
DROPOUT_RATE = 0.1
WARMUP_STEPS = 4
STATS_PERIOD = 5
EVAL_PERIOD = 6
EVAL_STEPS = 2
CHECKPOINT_PERIOD = 4

encoder_decoder.T5Config:
  emb_dim = 32
  num_heads = 2
  head_dim = 16
  mlp_dim = 64
  num_encoder_layers = 1
  num_decoder_layers = 1
"""


# The same, started from a checkpoint of it.
FINE_TUNING = """
include 'gin/runs/finetune.gin'

INITIAL_CHECKPOINT = 'small'
""".join(EXPERIMENT.split("include 'gin/runs/pretrain.gin'\n"))


@dataclass(frozen=True)
class Workplace:
    """A folder with data, caches, runs and one experiment, away from those of the checkout."""

    folder: Path
    fast_compilation: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)  # what else the programs find in their environment

    @property
    def experiment(self) -> Path:
        return self.folder / "small.gin"

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "T5XPG_DATA_DIR": str(self.folder / "data"),
            "T5XPG_CACHE_DIR": str(self.folder / "cache"),
            "T5XPG_RUNS_DIR": str(self.folder / "runs"),
            "PYTHONPATH": str(self.folder),
            "PYTHONUNBUFFERED": "1",
        }
        if not self.fast_compilation:
            own["XLA_FLAGS"] = ""
            own["JAX_ENABLE_COMPILATION_CACHE"] = "0"  # it cannot keep oneDNN's products, and warns
        return {**os.environ, **own, **self.variables}

    def enter(self, patch: pytest.MonkeyPatch) -> None:
        """Let this process work there."""
        for name, value in self.environment.items():
            patch.setenv(name, value)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "t5xpg", *arguments]

    @contextmanager
    def start(self, *arguments: str, held_at: int | None = None, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """A running program, its output in a pipe; it is killed when the block is left, however that comes.

        held_at: the step at which training waits for SIGCONT, once its checkpoint is written.
        """
        held = [sys.executable, "-m", "tests.train.held_training", str(held_at), *arguments]
        process = subprocess.Popen(
            self.command(*arguments) if held_at is None else held,
            env={**self.environment, **variables},
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()

    def run(self, *arguments: str, code: int = 0, **variables: str) -> str:
        """Run a command; returns what it printed on both streams.

        It runs in this process, as a start takes seconds, unless `variables`, some of which are read at the start, or
        other flags of XLA need a process of its own.
        """
        if variables or not self.fast_compilation:
            with self.start(*arguments, **variables) as process:
                printed, found = process.communicate(timeout=PATIENCE)[0], process.returncode
        else:
            printed, found = self.run_here(arguments)
        assert found == code, f"{printed}\nended with {found}"
        return printed

    def refused(self, *arguments: str, words: Sequence[str] = ()) -> str:
        """What a command prints that ends with 1 for a mistake, and names each of the words."""
        printed = self.run(*arguments, code=1)
        assert_named(printed, words)
        return printed

    def run_here(self, arguments: Sequence[str]) -> tuple[str, int]:
        """What a command prints, and its exit code."""
        printed, handler = io.StringIO(), signal.getsignal(signal.SIGTERM)
        with (
            pytest.MonkeyPatch.context() as patch,
            mock.patch.dict(os.environ, self.environment),
            redirect_stdout(printed),
            redirect_stderr(printed),
        ):
            patch.chdir(REPOSITORY)
            patch.syspath_prepend(self.folder)
            patch.setattr(sys, "argv", ["t5xpg", *arguments])
            try:
                code = cli.main()
            except SystemExit as end:
                code = end.code
            finally:
                signal.signal(signal.SIGTERM, handler)
        return printed.getvalue(), code


def wait_until(process: subprocess.Popen[str], holds: Callable[[], object]) -> None:
    """Return when `holds()` is true, as long as the process runs."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def run_python(program: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """What a program, given as its text, prints; it has to end well."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=env,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def left_by(name: str, kind: str = ".tmp", process: int = DEAD) -> str:
    """The name of a temporary file or folder that another process of this machine left."""
    return files.temporary_prefix(name).replace(f"-{os.getpid()}.", f"-{process}.") + f"abcd1234{kind}"


def program_of(name: str) -> ModuleType:
    """A program of the repository that is in no package."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, REPOSITORY / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sentences(count: int, seed: int) -> str:
    """Lines of made-up but regular English, each of more than 100 characters."""
    draw = random.Random(seed)
    nouns = ["dog", "cat", "house", "river", "teacher", "engine", "letter", "window", "garden", "doctor"]
    verbs = ["sees", "finds", "paints", "follows", "remembers", "carries", "repairs", "watches"]
    lines = []
    for _ in range(count):
        parts = [f"the {draw.choice(nouns)} {draw.choice(verbs)} the {draw.choice(nouns)}" for _ in range(5)]
        lines.append(", and ".join(parts) + ".")
    return "\n".join(lines) + "\n"


def make_hub(folder: Path, name: str, **lines: int) -> Path:
    """A dataset in the hub's layout: a configuration `name`, and for each split a Parquet file of so many lines."""
    files = "".join(f"  - split: {split}\n    path: {name}/{split}/*\n" for split in lines)
    for split, count in lines.items():
        (folder / name / split).mkdir(parents=True)
        table = pyarrow.table({"text": [f"{line} æ ø å" for line in sentences(count, seed=count).splitlines()]})
        pyarrow.parquet.write_table(table, folder / name / split / "00000.parquet")
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: {name}\n  data_files:\n{files}---\n")
    return folder


def make_workplace(folder: Path) -> Workplace:
    """Exported and cached text and an experiment."""
    place = Workplace(folder)
    (place.folder / "train.txt").write_text(sentences(300, seed=1))
    (place.folder / "validation.txt").write_text(sentences(40, seed=2))
    place.experiment.write_text(EXPERIMENT)
    files = f"train='{place.folder / 'train.txt'}' validation='{place.folder / 'validation.txt'}'"
    place.run("data", "small", f"--files={files}")
    place.run("cache", "small_span_corruption")
    return place


def contents(place: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a folder: kind and permissions, size, and text of files. Locks stay, empty, for the next one."""
    found = {}
    for path in sorted(place.rglob("*")):
        status = path.lstat()
        if path.name.startswith(".") and path.suffix == ".lock" and not status.st_size:
            continue
        text = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(place))] = (status.st_mode, len(text), text)
    return found


def checkpoint_arrays(folder: Path, step: int) -> dict[str, np.ndarray]:
    """All arrays of a checkpoint's parameters and optimiser, by path."""
    import jax
    import orbax.checkpoint as ocp

    arrays: dict[str, np.ndarray] = {}
    for item in ("params", "optimizer"):
        with ocp.StandardCheckpointer() as reader:
            tree = reader.restore(folder / str(step) / item)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            arrays[item + jax.tree_util.keystr(path)] = np.asarray(leaf)
    return arrays


def assert_same_run(run: Path, unbroken: Path, step: int) -> None:
    """Two run directories hold the same records and, after `step`, the same parameters and optimiser, bit for bit."""
    for record in ("metrics.jsonl", "batches.sha256"):
        assert (run / record).read_bytes() == (unbroken / record).read_bytes(), record
    ours, theirs = (checkpoint_arrays(path / "checkpoints", step) for path in (run, unbroken))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype, name
        assert array.tobytes() == theirs[name].tobytes(), name


def git(folder: Path, *arguments: str) -> str:
    """What git prints in a folder, with a name for commits and without the variables of a hook."""
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout.strip()
