"""Experiments trained by T5X itself, in a process of its own and, where needed, with a Python of its own."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from t5xpg.base import locks, paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import write_json, write_text
from t5xpg.base.paths import shown
from t5xpg.data import objectives
from t5xpg.exchange.t5x.engine_gin import experiment_gin
from t5xpg.exchange.t5x.networks import RECORD, record_of
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.known_tasks import known_task
from t5xpg.experiment.recipe import make_all

# Variables for T5X's process, which `engine_tasks` reads.
OBJECTIVE = "T5XPG_ENGINE_OBJECTIVE"  # the objective whose numbers replace those of the task table, as JSON
MODULES = "T5XPG_ENGINE_MODULES"  # the user's modules that register tasks, separated by spaces

PYTHON_VARIABLE = "T5X_PYTHON"
FRAGMENT = "gin/engines/t5x.gin"
_GIN_FILE, _LOG = "experiment.gin", "t5x.log"
_METRICS = re.compile(r"\[(\d+)\] (.*=.*)")
_MISSING = (
    "ENGINE=t5x: T5X is not installed. It is in no package registry: install github.com/google-research/t5x here or in "
    f"an environment of its own, whose Python is named by {PYTHON_VARIABLE}=/path/to/python (docs/interop.md)."
)


def python_with_t5x() -> str:
    """The Python that can import T5X: the one that T5X_PYTHON names, or this one. Raises UserError where none is."""
    python = os.environ.get(PYTHON_VARIABLE)
    if not python:
        if importlib.util.find_spec("t5x") is None:
            raise UserError(_MISSING)
        return sys.executable
    program = "import importlib.util, sys; sys.exit(importlib.util.find_spec('t5x') is None)"
    try:
        subprocess.run([python, "-c", program], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        raise UserError(f"{PYTHON_VARIABLE}={python} is no Python that can import t5x.") from None
    return python


def train(loaded: LoadedConfig, folder: Path, initial: str | None = None) -> None:
    """Train an experiment with T5X in `folder`, its MODEL_DIR, or continue there.

    initial: a checkpoint of T5X to start from. Raises UserError where T5X is not installed, cannot train the experiment
    or fails, and where the folder is that of another experiment.
    """
    python = python_with_t5x()
    experiment = loaded.experiment
    folder = folder.absolute()
    gin = experiment_gin(experiment, loaded.name, folder, None if initial is None else Path(initial).resolve())
    _check_folder(folder, gin)
    make_all([experiment.train_dataset, experiment.eval_dataset], experiment.needs)
    command = [
        python, "-m", "t5x.train", f"--gin_search_paths={paths.REPOSITORY}", f"--gin_file={folder / _GIN_FILE}",
        f"--gin_file={FRAGMENT}",
    ]  # fmt: skip
    with locks.hold(folder / ".lock", doing=f"training in {folder}", instead="Wait for it, or stop it."):
        write_text(folder / _GIN_FILE, gin)
        if (row := known_task(experiment.train_dataset.mixture_or_task_name)) is not None:
            write_json(folder / RECORD, record_of(experiment.model.config, row.vocabulary))
        print(f"T5X trains {loaded.name} in {shown(folder)}; all that it prints: {shown(folder / _LOG)}", flush=True)
        is_mean = experiment.loss.loss_normalizing_factor == "NUM_REAL_TARGET_TOKENS"
        code, last = _run(command, loaded, folder / _LOG, experiment.num_microbatches if is_mean else None)
    if code:
        raise UserError(f"T5X ended with code {code}: {_reason(last)} All that it printed is in {shown(folder / _LOG)}")
    back = f"make import CHECKPOINT={shlex.quote(shown(folder))} NAME={loaded.name}_of_t5x"
    print(f"trained by T5X: {shown(folder)}; {back} takes it back", flush=True)


def _run(command: list[str], loaded: LoadedConfig, log_file: Path, means: int | None) -> tuple[int, Iterable[str]]:
    """Run T5X, write its output to a file and print its `summary`; returns the exit code and the last lines."""
    last: deque[str] = deque(maxlen=40)
    with log_file.open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, env=_environment(loaded), cwd=paths.REPOSITORY, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                last.append(line)
                if message := summary(line, means):
                    print(message, flush=True)
            return process.wait(), last
        finally:
            process.kill()


def _environment(loaded: LoadedConfig) -> dict[str, str]:
    train_dataset = loaded.experiment.train_dataset
    objective = objectives.to_json(train_dataset.objective)
    python_path = os.pathsep.join(filter(None, [str(paths.REPOSITORY), os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "PYTHONPATH": python_path,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "T5XPG_DATA_DIR": str(paths.data_directory()),
        "T5XPG_CACHE_DIR": str(paths.cache_directory()),
        OBJECTIVE: "" if objective is None else json.dumps(objective),
        MODULES: " ".join(train_dataset.module_import),
    }


def _check_folder(folder: Path, gin: str) -> None:
    """Raise UserError for a folder of another experiment: T5X would go on from its checkpoints without a word."""
    gin_file = folder / _GIN_FILE
    if folder.is_dir() and any(not file.name.startswith(".") for file in folder.iterdir()) and not gin_file.is_file():
        raise UserError(f"{folder} is there, and T5X has not trained in it by this program. Name another one: RUN=…")
    if gin_file.is_file():
        before, now = (
            [line for line in text.splitlines() if not line.startswith("TRAIN_STEPS = ")]
            for text in (gin_file.read_text(encoding="utf-8"), gin)
        )
        if before != now:
            changed = [line for line in now if line not in before] or [line for line in before if line not in now]
            raise UserError(
                f"{folder} is of other settings: {'; '.join(changed[:3])}. Name another folder (RUN=…), or delete it."
            )


def summary(line: str, means: int | None) -> str | None:
    """The step, nats per target token and accuracy in a line of T5X's log, as text; None for other lines.

    means: the number of parts of a batch whose mean losses T5X adds up in training; None where the loss is a sum over
    tokens. T5X's own loss per token would divide the means by the number of tokens once more.
    """
    if (match := _METRICS.search(line)) is None:
        return None
    values = dict(re.findall(r"(\S+?)=([^\s,]+)", match[2]))
    loss = values.get("cross_ent_loss" if means else "loss_per_nonpadding_target_token")
    if loss is None or "accuracy" not in values:
        return None
    trains = values.get("collection") == "train"
    what, nats = "train" if trains else "validation", float(loss) / (means if trains and means else 1)
    rate = f"  learning rate {values['learning_rate']}" if "learning_rate" in values else ""
    return f"step {int(match[1]):,}  {what}  loss {nats:.4f}  token accuracy {float(values['accuracy']):.4f}{rate}"


def _reason(lines: Iterable[str]) -> str:
    """The line of a traceback with the error."""
    errors = [line.strip() for line in lines if re.match(r"\s*[\w.]*(Error|Exception)\b.*", line)]
    return f"{errors[-1][:300]}." if errors else ""
