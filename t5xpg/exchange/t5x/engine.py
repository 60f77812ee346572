"""Experiments trained by T5X itself, in a process and, where it must be, a Python of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import write_json, write_text
from t5xpg.base.paths import shown
from t5xpg.data import objectives
from t5xpg.data.spec import DatasetConfig
from t5xpg.exchange.t5x.networks import RECORD, SCALABLE, network_gin, network_of, record_of
from t5xpg.experiment import Experiment, data_state, prepare
from t5xpg.experiment.config import LoadedConfig
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.losses import LossConfig
from t5xpg.optim.optimizers import Adafactor
from t5xpg.optim.schedules import Constant, InverseSquareRoot

EVAL_STEPS = 20  # of an experiment that validates on all of the split, for which T5X has no word
_ADAFACTOR = (
    "decay_rate", "multiply_by_parameter_scale", "clipping_threshold", "epsilon1", "epsilon2", "min_dim_size_to_factor",
    "factored", "momentum", "step_offset", "weight_decay", "weight_decay_lr_exponent", "max_gradient_norm",
)  # fmt: skip


def experiment_gin(experiment: Experiment, name: str, model_dir: Path, initial: Path | None) -> str:
    """The file that is parsed behind the fragment. model_dir: T5X's. initial: a checkpoint of T5X to start from.

    Raises UserError with everything that T5X has not, at once.
    """
    if problems := list(unsupported(experiment)):
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise UserError(f"T5X cannot train {name} as it is:\n{listed}")
    macros = macros_of(experiment) | {
        "MODEL_DIR": str(model_dir),
        "INITIAL_CHECKPOINT_PATH": [] if initial is None else str(initial),
    }
    return "\n".join(
        [
            f"# {name} for T5X: the macros of gin/engines/t5x.gin.",
            "from __gin__ import dynamic_registration",
            "",
            *network_gin(experiment.model),
            "",
            *(f"{macro} = {value!r}" for macro, value in macros.items()),
            "",
        ]
    )


def macros_of(experiment: Experiment) -> dict[str, Any]:
    """{"TRAIN_STEPS": 100, …} of an experiment that T5X can train."""
    train, loss, optimizer = experiment.train_dataset, experiment.loss, experiment.optimizer
    assert isinstance(loss, LossConfig)
    assert isinstance(optimizer, Adafactor)
    factors, rate, warmup = _schedule(optimizer.learning_rate)
    return {
        "MIXTURE_OR_TASK_NAME": train.mixture_or_task_name,
        "TASK_FEATURE_LENGTHS": dict(train.task_feature_lengths),
        "TRAIN_SPLIT": train.split,
        "EVAL_SPLIT": experiment.eval_dataset.split,
        "BATCH_SIZE": train.batch_size,
        "SHUFFLE_TRAIN_EXAMPLES": train.shuffle,
        "USE_CACHED_TASKS": train.use_cached,
        "PACK": train.pack,
        "RANDOM_SEED": experiment.random_seed,
        "TRAIN_STEPS": experiment.total_steps,
        "EVAL_STEPS": experiment.eval_dataset.max_batches or EVAL_STEPS,
        "EVAL_PERIOD": experiment.eval_period,
        "STATS_PERIOD": experiment.stats_period,
        "CHECKPOINT_PERIOD": experiment.checkpoints.period,
        "KEEP_CHECKPOINTS": experiment.checkpoints.keep,
        "NUM_MICROBATCHES": experiment.num_microbatches,
        "MODEL_PARALLEL": experiment.mesh.model,
        "DROPOUT_RATE": experiment.model.config.dropout_rate,
        "Z_LOSS": loss.z_loss,
        "LABEL_SMOOTHING": loss.label_smoothing,
        "LOSS_NORMALIZING_FACTOR": loss.loss_normalizing_factor,
        "FACTORS": factors,
        "LEARNING_RATE": rate,
        "WARMUP_STEPS": warmup,
        **{setting.upper(): getattr(optimizer, setting) for setting in _ADAFACTOR},
    }


def unsupported(experiment: Experiment) -> Iterator[str]:
    """What of an experiment T5X has not, or has otherwise; with what to set where there is something."""
    model, optimizer = experiment.model, experiment.optimizer
    try:
        network = network_of(model)
    except UserError as error:
        yield str(error)
    else:
        if not isinstance(model, EncoderDecoderModel) or type(model).__name__ != EncoderDecoderModel.__name__:
            yield f"{type(model).__name__}: only encoder-decoders are driven through T5X."
        elif network == SCALABLE and model.config.float32_attention_logits:
            yield "float32_attention_logits: T5X's network with tables of positions in every layer has no such setting."
    if not isinstance(optimizer, Adafactor):
        yield (
            f"{type(optimizer).__name__}: T5X trains with its Adafactor here. "
            'GIN="--gin_file=gin/optimizers/adafactor.gin" takes it.'
        )
    else:
        try:
            _schedule(optimizer.learning_rate)
        except UserError as error:
            yield str(error)
        if optimizer.step_offset and network_of(model) == SCALABLE:
            yield "step_offset: not with tables of positions in every layer."
    if experiment.initial is not None:
        yield "INITIAL_CHECKPOINT: T5X starts from a checkpoint of its own; name one with INITIAL=path."
    if experiment.infer_eval_period is not None:
        yield "INFER_EVAL_PERIOD: metrics of tasks are not computed while T5X trains; set it to None."
    if experiment.skip_nonfinite:
        yield "SKIP_NONFINITE: T5X has no such thing; set it to 0."
    yield from _of_data(experiment.train_dataset)
    yield from _of_periods(experiment)


def _of_data(train: DatasetConfig) -> Iterator[str]:
    if train.feature_converter not in (None, "EncDecFeatureConverter"):
        yield f"FEATURE_CONVERTER={train.feature_converter}: T5X's encoder-decoders take EncDecFeatureConverter."
    if train.num_virtual_shards != 1:
        yield "NUM_VIRTUAL_SHARDS: T5X reads one shard for each process; set it to 1."


def _of_periods(experiment: Experiment) -> Iterator[str]:
    periods = {"EVAL_PERIOD": experiment.eval_period, "CHECKPOINT_PERIOD": experiment.checkpoints.period}
    least = min(periods.values())
    for name, period in periods.items():
        if period % least:
            yield f"{name}={period}: for T5X it must be a multiple of {least}."


def _schedule(schedule: Any) -> tuple[str, float, int]:
    """T5X's factors, base rate and warmup steps. Raises UserError for a schedule that T5X has not."""
    if isinstance(schedule, InverseSquareRoot):
        warmup = "constant * linear_warmup * rsqrt_decay" if schedule.linear_warmup else "constant * rsqrt_decay"
        return warmup, schedule.base_learning_rate, schedule.warmup_steps
    if isinstance(schedule, Constant):
        factors = "constant * linear_warmup" if schedule.warmup_steps else "constant"
        return factors, schedule.value, max(1, schedule.warmup_steps)
    raise UserError(
        f"{type(schedule).__name__}: T5X has no such schedule. SCHEDULE=@schedules.InverseSquareRoot() and "
        "@schedules.Constant() are in both."
    )


OBJECTIVE = "T5XPG_ENGINE_OBJECTIVE"  # JSON of the noise that takes the place of the table's
MODULES = "T5XPG_ENGINE_MODULES"  # the user's modules that register tasks, between spaces


PYTHON_VARIABLE = "T5X_PYTHON"
FRAGMENT = "gin/engines/t5x.gin"
_MACROS, _LOG = "experiment.gin", "t5x.log"
_METRICS = re.compile(r"\[(\d+)\] (.*=.*)")
_MISSING = (
    "ENGINE=t5x: T5X is not installed. It is in no package registry: install github.com/google-research/t5x here or in "
    f"an environment of its own, whose Python is named by {PYTHON_VARIABLE}=/path/to/python (docs/interop.md)."
)


def python_with_t5x() -> str:
    """The Python that can import T5X: the one that T5X_PYTHON names, or this one. Raises UserError where none is."""
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        asked = [named, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('t5x') is None)"]
        try:
            found = subprocess.run(asked, capture_output=True, timeout=60).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            found = False
        if not found:
            raise UserError(f"{PYTHON_VARIABLE}={named} is no Python that can import t5x.")
        return named
    if importlib.util.find_spec("t5x") is None:
        raise UserError(_MISSING)
    return sys.executable


def train(loaded: LoadedConfig, folder: Path, initial: str | None = None) -> int:
    """Train an experiment with T5X in `folder`, its MODEL_DIR, or continue there; returns the exit code.

    initial: a checkpoint of T5X to start from. Raises UserError where T5X is not installed or cannot do it, and where
    the folder is that of another experiment.
    """
    python = python_with_t5x()
    experiment = loaded.experiment
    folder = folder.absolute()
    gin = experiment_gin(experiment, loaded.name, folder, None if initial is None else Path(initial).resolve())
    _check_folder(folder, gin)
    prepare.prepare_all([experiment.train_dataset, experiment.eval_dataset], experiment.needs)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / _MACROS, gin)
    if (row := data_state.row_of(experiment.train_dataset.mixture_or_task_name)) is not None:
        write_json(folder / RECORD, record_of(experiment.model.config, row.vocabulary))
    command = [
        python, "-m", "t5x.train", f"--gin_search_paths={paths.REPOSITORY}", f"--gin_file={folder / _MACROS}",
        f"--gin_file={FRAGMENT}",
    ]  # fmt: skip
    print(f"T5X trains {loaded.name} in {shown(folder)}; all that it says: {shown(folder / _LOG)}", flush=True)
    is_mean = experiment.loss.loss_normalizing_factor == "NUM_REAL_TARGET_TOKENS"
    means = experiment.num_microbatches if is_mean else None
    with (folder / _LOG).open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, env=_environment(loaded), cwd=paths.REPOSITORY, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        last: list[str] = []
        try:
            for line in process.stdout:
                log.write(line)
                last = [*last[-39:], line]
                if said := summary(line, means):
                    print(said, flush=True)
            code = process.wait()
        finally:
            process.kill()
    if code:
        raise UserError(f"T5X ended with code {code}: {_reason(last)} All that it said is in {shown(folder / _LOG)}")
    name = f"{loaded.name}_of_t5x"
    print(
        f"trained by T5X: {shown(folder)}; make import CHECKPOINT={shown(folder)} NAME={name} takes it back", flush=True
    )
    return 0


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
    there = folder / _MACROS
    if folder.is_dir() and any(folder.iterdir()) and not there.is_file():
        raise UserError(f"{folder} is there, and T5X has not trained in it by this program. Name another one: RUN=…")
    if there.is_file():
        before, now = (_without_steps(text) for text in (there.read_text(encoding="utf-8"), gin))
        if before != now:
            changed = [line for line in now if line not in before] or [line for line in before if line not in now]
            raise UserError(
                f"{folder} is of other settings: {'; '.join(changed[:3])}. Name another folder (RUN=…), or delete it."
            )


def _without_steps(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("TRAIN_STEPS = ")]


def summary(line: str, means: int | None) -> str | None:
    """What a user wants to read of a line of T5X's log: step, nats for each target token, accuracy; None of others.

    means: of how many parts of a batch T5X adds up the mean losses while training; None where the loss is a sum over
    tokens. T5X's own loss for each token divides means by the tokens once more.
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
    return f"step {int(match[1]):,}  {what}  loss {nats:.4f}  accuracy {float(values['accuracy']):.4f}{rate}"


def _reason(lines: list[str]) -> str:
    """The line of a traceback that says what is wrong."""
    found = [line.strip() for line in lines if re.match(r"\s*[\w.]*(Error|Exception)\b.*", line)]
    return f"{found[-1][:300]}." if found else ""
