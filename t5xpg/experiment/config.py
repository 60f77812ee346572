"""Loads an `Experiment` from gin files and overrides. Only this module and `gin_*.py` import gin.

gin stops at the first mistake. Here all mistakes are reported at once: gin gets one statement at a time
(`gin_reading`), the graph of bindings is checked before anything is built (`gin_graph`), and each part is built by
itself (`gin_building`).
"""

import contextlib
import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gin import config as gin
from t5xpg.base import paths, stores
from t5xpg.base.errors import UserError, nearest
from t5xpg.experiment import gin_graph
from t5xpg.experiment.gin_building import FAILED, Builder
from t5xpg.experiment.gin_reading import Reader
from t5xpg.models.config import T5Config
from t5xpg.run.records import to_json_number

if TYPE_CHECKING:
    from t5xpg.experiment.experiment import Experiment  # loads JAX


@dataclass(frozen=True)
class LoadedConfig:
    """An experiment, and its gin text in two forms. full: every binding. operative: every value used, with defaults."""

    name: str
    gin_file: Path
    experiment: "Experiment"
    full: str
    operative: str
    gin_files: tuple[Path, ...] = ()

    @property
    def files(self) -> list[Path]:
        """The sources of the experiment: its gin files, and the modules of the checkout that it names or imports."""
        modules: list[str | None] = []
        for one in sys.modules.copy().values():  # other threads import meanwhile
            with contextlib.suppress(AttributeError):  # of what is no module
                # to ask a lazy module for its file would load it
                modules.append(object.__getattribute__(one, "__dict__").get("__file__"))
        for name in {name for dataset in self.experiment.datasets for name in dataset.module_import}:
            with contextlib.suppress(ImportError, ValueError):  # the data process says so
                modules.append(getattr(find_spec(name), "origin", None))
        own = (Path(file) for file in modules if file and Path(file).is_relative_to(paths.REPOSITORY))
        return [*self.gin_files, *(file for file in own if "site-packages" not in file.parts)]

    @property
    def name_or_file(self) -> str:
        """The value of EXP= that names the experiment."""
        folder = paths.experiments().get(self.name)
        is_named = folder is not None and folder.resolve() == self.gin_file.resolve().parent
        return self.name if is_named else paths.shown(self.gin_file)


class ConfigError(UserError):
    """All mistakes of a configuration, one message each in `problems`."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = [f"{len(problems)} mistakes in the configuration of {name}:", *(f"  {problem}" for problem in problems)]
        super().__init__(problems[0] if len(problems) == 1 else "\n".join(lines))


def find_experiment(name_or_file: str) -> tuple[str, Path]:
    """Find the name and the gin file of an experiment by a folder's name, a gin file's path or an imported run's name.

    Raises UserError, with the nearest names, where there is none.
    """
    if name_or_file.endswith(".gin"):
        file = Path(name_or_file)
        if not file.is_file():
            raise UserError(f"There is no gin file {name_or_file}.")
        return file.stem, file
    if Path(name_or_file).name != name_or_file:
        raise UserError(
            f"There is no experiment {name_or_file!r}: name a folder of {paths.EXPERIMENTS}, or a gin file by its path."
        )
    folders = paths.experiments()
    file = folders.get(name_or_file, paths.EXPERIMENTS / name_or_file) / f"{name_or_file}.gin"
    imported = paths.runs_directory() / name_or_file / f"{name_or_file}.gin"  # what `make import` writes
    if not file.is_file():
        stores.pull(imported.parent)
    for candidate in (file, imported):
        if candidate.is_file():
            return name_or_file, candidate
    known = [name for name, folder in folders.items() if (folder / f"{name}.gin").is_file()]
    raise UserError(f"There is no experiment {name_or_file!r} in {paths.EXPERIMENTS}.{nearest(name_or_file, known)}")


def load(name_or_file: str, overrides: Sequence[str] = (), gin_files: Sequence[str] = ()) -> LoadedConfig:
    """Parse an experiment's gin file, then `gin_files` over it, then `overrides` ("NAME=value") over both.

    The value of an override that gin cannot parse is taken as a string, so no quotes are needed. Raises ConfigError for
    unknown names, missing required values, wrong values and bindings that nothing reads.
    """
    loaded, problems = examine(name_or_file, overrides, gin_files)
    if problems or loaded is None:
        raise ConfigError(find_experiment(name_or_file)[0], problems)
    return loaded


def examine(
    name_or_file: str, overrides: Sequence[str] = (), gin_files: Sequence[str] = ()
) -> tuple[LoadedConfig | None, list[str]]:
    """The experiment, if it can be built, and the messages of all mistakes; arguments as for `load`."""
    from t5xpg.experiment.experiment import Experiment

    name, file = find_experiment(name_or_file)
    gin.clear_config()
    reader = Reader()
    used_bindings: set[gin_graph.Binding] = set()
    for gin_file in (str(file), *gin_files):
        reader.include(gin_file)
        used_bindings |= gin_graph.bindings_read(reader.unbound + reader.replaced)
    known = gin_graph.macros() | gin_graph.macros_referenced()
    for override in overrides:
        reader.override(override, known)

    problems = reader.problems
    problems += gin_graph.required_macros(file)
    if not reader.incomplete:
        problems += gin_graph.undefined_macros(file)
        # Bindings of a replaced part (an optimizer, by --gin_file) may stay unread, but not those of the command line.
        unread = set(reader.bound_at) - gin_graph.bindings_read(reader.unbound) - (used_bindings - reader.overridden)
        problems += [gin_graph.unread_message(binding, reader.bound_at[binding]) for binding in sorted(unread)]
    builder = Builder(reader.bound_at, complete=not reader.incomplete)
    experiment = (
        builder.build((), gin._REGISTRY.get_match(gin_graph.ROOT)) if gin_graph.ROOT in gin._REGISTRY else FAILED
    )
    problems = list(dict.fromkeys([*problems, *builder.problems]))  # two datasets can share a mistake
    if not isinstance(experiment, Experiment):
        return None, problems or [f"{file} does not say what an Experiment is: include gin/runs/pretrain.gin."]
    texts = gin.config_str(), gin.operative_config_str()
    return LoadedConfig(name, file, experiment, *texts, tuple(reader.files)), problems


def split_overrides(text: str) -> tuple[list[str], list[str]]:
    """`--gin.A=1 --gin.B={'x': 2} --gin_file=f` as (["A=1", "B={'x': 2}"], ["f"]); values may hold spaces."""
    overrides: list[str] = []
    files: list[str] = []
    options = [option.strip() for option in re.split(r"(?:^|\s+)(?=--gin[._])", text) if option.strip()]
    for option in options:
        if option.startswith("--gin.") and "=" in option:
            overrides.append(option.removeprefix("--gin."))
        elif option.startswith("--gin_file="):
            files.append(option.removeprefix("--gin_file="))
        else:
            raise UserError(f"Cannot read {option!r}: expected --gin.NAME=value or --gin_file=path.")
    return overrides, files


def logger_overrides(names: str) -> tuple[list[str], list[str]]:
    """The overrides and the gin files that turn loggers on. names: of files of gin/loggers, such as "wandb,mlflow".

    Raises UserError, with the nearest names, for an unknown name.
    """
    loggers = names.replace(",", " ").split()
    known = sorted(file.stem for file in (paths.GIN / "loggers").glob("*.gin"))
    for name in loggers:
        if name not in known:
            raise UserError(f"There is no logger {name!r}: LOGGER is {' or '.join(known)}.{nearest(name, known)}")
    files = [str(paths.GIN / "loggers" / f"{name}.gin") for name in loggers]
    return [f"LOGGERS=({''.join(f'%{name.upper()},' for name in loggers)})"] if loggers else [], files


def settings(value: Any, prefix: str = "") -> dict[str, Any]:
    """The fields of nested dataclasses as one flat dict of JSON values: {"optimizer": "Adafactor", ...}.

    Those of a T5Config have the names of `T5Config.recorded`.
    """
    flat: dict[str, Any] = {}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if prefix:
            flat[prefix] = type(value).__name__  # gin configures a class through a subclass of the same name
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        for name, one in (value.recorded() if isinstance(value, T5Config) else named).items():
            flat.update(settings(one, f"{prefix}.{name}" if prefix else name))
    else:
        flat[prefix] = _json_value(value)
    return flat


def _json_value(value: Any) -> Any:
    """A value as JSON. Of a dataclass its class and fields, of a function its name, of any other object its class."""
    value = to_json_number(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in sorted(value.items())}
    if isinstance(value, tuple | list):
        return [_json_value(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__, **settings(value)}
    return getattr(value, "__qualname__", type(value).__name__)
