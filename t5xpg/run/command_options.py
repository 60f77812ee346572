"""The options of a Make command for a run: its experiment, the run, and the overrides of its last start."""

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t5xpg.base import paths
from t5xpg.run.directory import RunDirectory


def options_of(run: RunDirectory) -> str:
    """The options for a run, such as `EXP=mine RUN=seed_1 GIN=--gin.RANDOM_SEED=1`."""
    record = run.read()
    gin = " ".join(overrides_of(record["starts"][-1]["command"]))
    return options_for(experiment_of(record), run.path, gin)


def experiment_of(record: Mapping[str, Any]) -> str:
    """The experiment of a run, as it was named at its last start: a name, or a gin file. record: its run.json."""
    words = shlex.split(record["starts"][-1]["command"])
    file = next((word for word in words if word.endswith(".gin") and not word.startswith("-")), None)
    return str(file or record["experiment"])


def options_for(experiment: str, path: Path, gin: str = "") -> str:
    """The options for an experiment and a run's folder, which need not exist. gin: all overrides."""
    is_named = path.resolve() == (paths.runs_directory() / path.name).resolve()
    # a word without a separator would be the name of a run
    run = path.name if is_named else os.path.join(os.curdir, paths.shown(path))
    default = os.path.basename(experiment.removesuffix(".gin"))
    options = {"EXP": experiment, "RUN": "" if run == default else run, "GIN": gin}
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in options.items() if value)


def overrides_of(command: str) -> Iterable[str]:
    """The overrides in a recorded command, such as `t5xpg train mine --gin-overrides='--gin.A=1' --gin.B=2`."""
    words = iter(shlex.split(command))
    for word in words:
        if word == "--gin-overrides":
            yield next(words, "")
        elif word.startswith("--gin-overrides="):
            yield word.removeprefix("--gin-overrides=")
        elif word.startswith(("--gin.", "--gin_file=")):
            yield word
