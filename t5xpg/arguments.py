"""The values that the options of a command name: experiments with overrides, run directories, paths, words."""

import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t5xpg.base import paths, stores
from t5xpg.base.errors import UserError

if TYPE_CHECKING:
    from t5xpg.experiment.config import LoadedConfig

FIXED_IN_STUDY = "What is trained stands in sweep.toml or matrix.toml: change it there, without GIN."
opened_runs: list[Path] = []  # the run directories that the command works in


def overrides(options: Namespace) -> tuple[list[str], list[str]]:
    """The overrides ("NAME=value", …) and the gin files that were given for the experiment."""
    from t5xpg.experiment import config

    bindings, files = config.split_overrides(" ".join([options.gin_overrides, *options.overrides]))
    logger_bindings, logger_files = config.logger_overrides(getattr(options, "logger", None) or "")
    return [*logger_bindings, *bindings], [*logger_files, *files]


def without_overrides(options: Namespace, message: str) -> None:
    """Raise UserError with `message` if overrides or gin files were given for the experiment."""
    if any(overrides(options)):
        raise UserError(message)


def load_experiment(options: Namespace) -> "LoadedConfig":
    """The experiment that the command names, with its overrides."""
    from t5xpg.experiment import config

    return config.load(options.experiment, *overrides(options))


def load_with_run(options: Namespace) -> "tuple[LoadedConfig, Path]":
    """The experiment, and its run directory: --run, its model_dir, or its name in runs/."""
    loaded = load_experiment(options)
    return loaded, run_directory(options, loaded.experiment.model_dir or loaded.name)


def load_run(options: Namespace) -> "tuple[LoadedConfig, Path]":
    """The run that the command names, by --run or by its experiment, as it was made, with the overrides that are given
    now; and its directory. The experiment's gin files of today are not read."""
    from t5xpg.evaluate import trained_model

    run = run_of(options)
    return trained_model.load_run(run, *overrides(options), options.experiment), run


def run_of(options: Namespace) -> Path:
    """The directory of the run that the command names, by --run or by its experiment."""
    if options.run:
        return run_directory(options, options.run)
    from t5xpg.experiment import config

    name = config.find_experiment(options.experiment)[0]
    path = paths.run_directory(name)
    return pull_run(name) if path.exists() else load_with_run(options)[1]


def run_directory(options: Namespace, default: str) -> Path:
    """--run, or `default`: a path, or a name in runs/."""
    return pull_run(options.run or default)


def pull_run(path_or_name: str) -> Path:
    """The run directory of a path or a name in runs/, pulled from its object store if it has one."""
    path = paths.run_directory(path_or_name)
    stores.pull(path)
    opened_runs.append(path)
    return path


def path_of(text: str | None) -> Path | None:
    """A path of this machine that was typed. Raises UserError for an address in a store."""
    if text and "://" in text:
        raise UserError(f"{text}: expected a path of this machine. Copy what is written there to the store afterwards.")
    return Path(text) if text else None


def words(text: str, name: str) -> list[str]:
    """`text`, the value of the variable `name`, split into words as a shell does. Raises UserError if that fails."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{name}={text}: {error}.") from None


def values(options: Namespace, *names: str) -> dict[str, Any]:
    """The options of these names, as keyword arguments."""
    return {name: getattr(options, name) for name in names}


def given_values(options: Namespace, *names: str) -> dict[str, Any]:
    """The options of these names that were given, as keyword arguments; for options without a default."""
    return {name: value for name, value in values(options, *names).items() if value is not None and value is not False}
