"""What a command for a run is given: its experiment, the run, and the overrides that it was last started with."""

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from t5xpg.base import paths
from t5xpg.run.directory import RunDirectory


def options_of(run: RunDirectory, gin: str = "") -> str:
    """As in `make eval EXP=mine RUN=seed_1 GIN=--gin.RANDOM_SEED=1`. gin: further overrides."""
    record = run.read()
    command = record["starts"][-1]["command"]
    file = next((word for word in shlex.split(command) if word.endswith(".gin") and not word.startswith("-")), None)
    given = " ".join([*overrides_of(command), *([gin] if gin else [])])
    return options_for(file or record["experiment"], run.path, given)


def options_for(experiment: str, path: Path, gin: str = "") -> str:
    """As `options_of`, for a folder that need not be there. gin: all overrides."""
    is_named = path.resolve() == (paths.runs_directory() / path.name).resolve()
    # a word without a separator would be the name of a run
    where = path.name if is_named else os.path.join(os.curdir, paths.shown(path))
    own = os.path.basename(experiment.removesuffix(".gin"))
    options = {"EXP": experiment, "RUN": "" if where == own else where, "GIN": gin}
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
