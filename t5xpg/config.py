"""From gin files and overrides to an `Experiment`: parse, check, explain. The only module that imports gin."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gin import config as gin
from t5xpg import paths
from t5xpg.errors import UserError, nearest
from t5xpg.experiment import Experiment

MACRO = "gin.macro"
ROOT = "t5xpg.experiment.Experiment"


@dataclass(frozen=True)
class LoadedConfig:
    """An experiment with the texts that it came from.

    full: every binding, as gin. operative: every value that was used, defaults included, as gin.
    """

    name: str
    gin_file: Path
    experiment: Experiment
    full: str
    operative: str


def find_experiment(name_or_file: str) -> tuple[str, Path]:
    """The name and the gin file of an experiment given by its folder's name or by a path to a gin file.

    Raises UserError with the nearest names where there is none.
    """
    if name_or_file.endswith(".gin"):
        file = Path(name_or_file)
        if not file.is_file():
            raise UserError(f"There is no gin file {name_or_file}.")
        return file.stem, file
    file = paths.EXPERIMENTS / name_or_file / f"{Path(name_or_file).name}.gin"
    if file.is_file():
        return name_or_file, file
    known = [folder.parent.name for folder in paths.EXPERIMENTS.glob("*/*.gin") if folder.stem == folder.parent.name]
    raise UserError(f"There is no experiment {name_or_file!r} in {paths.EXPERIMENTS}.{nearest(name_or_file, known)}")


def load(name_or_file: str, overrides: Sequence[str] = (), gin_files: Sequence[str] = ()) -> LoadedConfig:
    """Parse an experiment's gin file, then `gin_files` over it, then `overrides` ("NAME=value") over both.

    A value that gin cannot parse is taken as a string, so that no quotes are needed. Names that nothing knows,
    required values that are missing and bindings that nothing consumed raise UserError.
    """
    name, file = find_experiment(name_or_file)
    gin.clear_config()
    _search_in_checkout()
    with _explained():
        gin.parse_config_file(str(file))
        replaceable = _reachable(ROOT)
        for each in gin_files:
            gin.parse_config_file(each)
        used = _macros_referenced()
        known = _macros_defined() | used
    for override in overrides:
        with _explained(f"--gin.{override}"):
            gin.parse_config([*_import_lines(), _parse_override(override, known)])
    _check_macros(file, used)
    with _explained(values=True):
        experiment = gin.get_configurable(ROOT)()
    _check_consumed(replaceable - _reachable(ROOT))
    return LoadedConfig(name, file, experiment, gin.config_str(), gin.operative_config_str())


def split_overrides(text: str) -> tuple[list[str], list[str]]:
    """Split `--gin.A=1 --gin.B={'x': 2} --gin_file=f` into (["A=1", "B={'x': 2}"], ["f"]).

    A value runs to the next `--gin`, so that it may hold spaces.
    """
    overrides: list[str] = []
    files: list[str] = []
    pieces = [piece.strip() for piece in re.split(r"(?:^|\s+)(?=--gin[._])", text) if piece.strip()]
    for piece in pieces:
        if piece.startswith("--gin.") and "=" in piece:
            overrides.append(piece.removeprefix("--gin."))
        elif piece.startswith("--gin_file="):
            files.append(piece.removeprefix("--gin_file="))
        else:
            raise UserError(f"Cannot read {piece!r}: expected --gin.NAME=value or --gin_file=path.")
    return overrides, files


def settings(value: Any, prefix: str = "") -> dict[str, Any]:
    """The fields of nested dataclasses as one flat dict of JSON values: {"optimizer": "Adafactor", ...}."""
    flat: dict[str, Any] = {}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if prefix:
            flat[prefix] = _public_name(type(value))
        for field in dataclasses.fields(value):
            flat.update(settings(getattr(value, field.name), f"{prefix}.{field.name}" if prefix else field.name))
    elif isinstance(value, Mapping):
        flat[prefix] = {str(key): item for key, item in sorted(value.items())}
    elif isinstance(value, (tuple, list)):
        flat[prefix] = [list(item) if isinstance(item, tuple) else item for item in value]
    else:
        flat[prefix] = value
    return flat


def _public_name(kind: type) -> str:
    # gin configures a class through a subclass of the same name.
    return kind.__name__


@functools.cache
def _search_in_checkout() -> None:
    """Let includes be named from the root of the checkout, whatever the current folder is."""
    gin.add_config_file_search_path(str(paths.REPOSITORY))


@contextlib.contextmanager
def _explained(typed: str = "", values: bool = False) -> Iterator[None]:
    """Turn gin's exceptions into one message with the nearest names.

    typed: what the user typed, where it is not a file that gin names. values: objects are being made of what was
    parsed, so that a TypeError or ValueError is that of a value.
    """
    # gin logs each place where it looked for a file; the message names the file.
    logging.disable(logging.ERROR)
    try:
        yield
    except UserError as error:
        raise UserError(_without_calls(str(error))) from error
    except Exception as error:
        if values and isinstance(error, TypeError | ValueError):
            where = re.search(r"In call to configurable '(\w+)'", str(error))
            of = f" for {where.group(1)}" if where else ""
            raise UserError(f"A value{of} is not of the right kind: {_without_calls(str(error))}.") from error
        if _raised_inside_package(error):
            raise
        raise UserError(f"{typed}: {_explain(error)}" if typed else _explain(error)) from error
    finally:
        logging.disable(logging.NOTSET)


def _without_calls(text: str) -> str:
    """A message without the lines in which gin lists the calls that led to it."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("  In call to configurable"))


def _raised_inside_package(error: Exception) -> bool:
    """Whether the innermost frame is in this package outside of this module: then it is a fault of ours, not of gin."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    file = traceback.tb_frame.f_code.co_filename if traceback is not None else ""
    return file.startswith(str(paths.PACKAGE)) and file != __file__


def _explain(error: Exception) -> str:
    text = str(error).strip()
    where = " ".join(line.strip() for line in text.splitlines() if line.strip().startswith("In file"))
    head = text.splitlines()[0].strip().rstrip(".") if text else type(error).__name__
    hint = ""
    if match := re.search(r"Configurable '([\w./]+)' doesn't have a parameter named '(\w+)'", text):
        hint = nearest(match.group(2), _parameters_of(match.group(1)))
    elif match := re.search(r"has no attribute '?(\w+)'?", text):
        head, hint = f"There is no {match.group(1)}", nearest(match.group(1), _public_attributes(text))
    elif match := re.search(r"'(\w+)' was not provided by an import statement", text):
        known = [statement.bound_name() for statement in gin._IMPORTS]
        head, hint = f"No gin file of this experiment imports {match.group(1)}", nearest(match.group(1), known)
    elif match := re.search(r"No configurable matching '([\w./]+)'", text):
        hint = nearest(match.group(1), _known_selectors())
    elif isinstance(error, OSError) and (match := re.search(r"Unable to open file: ([^.]+\.gin)", text)):
        known = [str(file.relative_to(paths.REPOSITORY)) for file in paths.GIN.rglob("*.gin")]
        head, hint = f"There is no gin file {match.group(1)}", nearest(match.group(1), known)
    elif isinstance(error, (SyntaxError,)):
        detail = getattr(error, "text", None)
        line = f", line {error.lineno}" if error.lineno else ""
        head = f"gin cannot read {error.filename or 'the configuration'}{line}: {error.msg}"
        hint = f" ({detail.strip()})" if detail else ""
    missing = f" {where}" if where and where not in head else ""
    return f"{head}.{hint}{missing}".replace("..", ".")


def _parameters_of(selector: str) -> list[str]:
    found = [item for name, item in gin._REGISTRY.items() if name.endswith(f".{selector}") or name == selector]
    return list(inspect.signature(found[0].wrapped).parameters) if found else []


def _public_attributes(text: str) -> list[str]:
    match = re.search(r"module '([\w.]+)'", text)
    module = sys.modules.get(match.group(1)) if match else None
    if module is None:
        return []
    return [
        name
        for name, item in vars(module).items()
        if callable(item) and getattr(item, "__module__", None) == module.__name__ and not name.startswith("_")
    ]


def _known_selectors() -> list[str]:
    return [selector.rsplit(".", 1)[-1] for _, selector in gin._CONFIG if selector != MACRO]


def _macros_defined() -> set[str]:
    return {scope for scope, selector in gin._CONFIG if selector == MACRO}


def _references(value: Any) -> Iterator[Any]:
    yield from gin.iterate_references(value)


def _macros_referenced() -> set[str]:
    names: set[str] = set()
    for bindings in gin._CONFIG.values():
        for reference in _references(bindings):
            if reference.configurable.selector == MACRO:
                names.add(_macro_name(reference))
    return names


def _macro_name(reference: Any) -> str:
    return str(reference.scoped_selector.rsplit("/", 1)[0])


def _import_lines() -> list[str]:
    statements = {statement.format() for statement in gin._IMPORTS}
    enabling = "from __gin__ import dynamic_registration"  # has to come first
    return [enabling, *sorted(statements - {enabling})]


def _parse_override(override: str, known_macros: set[str]) -> str:
    name, separator, value = override.partition("=")
    name = name.strip()
    if not separator or not name:
        raise UserError(f"Cannot read --gin.{override}: expected --gin.NAME=value.")
    if "." not in name and name not in known_macros:
        raise UserError(f"No gin file of this experiment knows {name}.{nearest(name, known_macros)}")
    return f"{name} = {_literal(value.strip())}"


def _literal(value: str) -> str:
    try:
        gin.parse_value(value)
    except (SyntaxError, ValueError):
        if value[:1] in "@%":
            return value
        return repr(value)
    return value


def _check_macros(file: Path, known: set[str]) -> None:
    """Every macro that is used has a value, and every one that has a value is used.

    known: the names before the overrides; one that an override has made idle may stay.
    """
    defined, referenced = _macros_defined(), _macros_referenced()
    for name in sorted(referenced - defined):
        if "." in name:  # a constant such as gin.REQUIRED
            continue
        raise UserError(f"%{name} is used in {file} or its includes, and nowhere set.{nearest(name, defined)}")
    for name in sorted(defined):
        value = gin._CONFIG[name, MACRO].get("value")
        if getattr(value, "scoped_selector", "").startswith("gin.REQUIRED"):
            raise UserError(f"{name} has no value: set it in {file}, or pass --gin.{name}=…")
    for name in sorted(defined - referenced - known):
        raise UserError(f"{name} is set, and nothing uses it ({file}).{nearest(name, referenced - {name})}")


def _reachable(root: str) -> set[str]:
    """The selectors that building `root` can reach through references, macros followed."""
    bindings_of: dict[str, list[Any]] = {}
    for (scope, selector), bindings in gin._CONFIG.items():
        bindings_of.setdefault(f"%{scope}" if selector == MACRO else selector, []).append(bindings)
    found: set[str] = set()
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for bindings in bindings_of.get(name, ()):
            for reference in _references(bindings):
                selector = reference.configurable.selector
                waiting.append(f"%{_macro_name(reference)}" if selector == MACRO else selector)
    return found


def _check_consumed(replaced: set[str]) -> None:
    """A binding that nothing consumed did nothing: say so.

    Those of a part that another one replaced (an optimizer named with --gin_file) may stay.
    """
    used: set[tuple[str, str]] = set()
    for (_, selector), bindings in gin._OPERATIVE_CONFIG.items():
        used.update((selector, parameter) for parameter in bindings)
    for (scope, selector), bindings in gin._CONFIG.items():
        if selector == MACRO or selector in replaced:
            continue
        for parameter in bindings:
            if (selector, parameter) not in used:
                scoped = f"{scope}/{selector}" if scope else selector
                raise UserError(f"{scoped}.{parameter} is bound, and nothing in this experiment reads it: remove it.")
