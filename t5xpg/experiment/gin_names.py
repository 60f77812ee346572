"""Misspelt names and values of the wrong type that the text of a configuration shows: nothing is imported for them."""

import ast
import builtins
import contextlib
import functools
import importlib.util
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError, nearest
from t5xpg.experiment.gin_building import type_problem
from t5xpg.experiment.gin_graph import unknown_macro, unused_macro
from t5xpg.experiment.gin_reading import NAME, literal, shortened
from t5xpg.experiment.gin_statements import BoundValue, Import, Reference, statements, value_as_written


def mistakes(file: Path, gin_files: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The messages of `config.examine` for macros that no file knows or uses, parameters that do not exist and values
    of the wrong type, as far as the texts tell; none where one of them cannot be read."""
    try:
        read = [one for name in (file, *map(Path, gin_files)) for one in statements(name, _included)]
    except UserError:  # `config.examine` says all that is wrong
        return []
    modules = {one.name: one.module for one in read if isinstance(one, Import)}
    bound = [one for one in read if isinstance(one, BoundValue)]
    used = {macro for one in bound for macro in _macros(one.value)}
    known = used | {one.parameter for one in bound if not one.selector}
    found = [
        unused_macro(one.parameter, one.place, used) for one in bound if not one.selector and one.parameter not in used
    ]
    for override in overrides:
        name, _, text = (part.strip() for part in override.partition("="))
        place = shortened(f"--gin.{override}")
        value: Any = Reference("")  # what cannot be read
        if "." not in name and name not in known and NAME.fullmatch(name):
            found.append(unknown_macro(name, known))
        with contextlib.suppress(UserError):
            value = value_as_written(literal(text))
        for one in bound:
            if one.selector and repr(one.value) == f"%{name}" and not isinstance(value, Reference):
                hint = _hints(modules, one.selector).get(one.parameter, Any)
                owner = one.selector.rpartition(".")[2]
                found += filter(None, [type_problem(f"{name} ({owner}.{one.parameter})", value, hint, f" ({place})")])
        selector, _, parameter = name.rpartition("/")[2].rpartition(".")
        if (hints := _hints(modules, selector)) and parameter not in hints:
            owner = selector.rpartition(".")[2]
            found.append(f"{place}: {owner} has no parameter named '{parameter}'.{nearest(parameter, hints)}")
    return list(dict.fromkeys(found))


def _included(name: str, _: Path) -> Path:
    return next((path for path in (Path(name), paths.REPOSITORY / name) if path.is_file()), Path(name))


def _macros(value: Any) -> Iterator[str]:
    """The macros in a value as written."""
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for one in value:
            yield from _macros(one)
    elif isinstance(value, Reference) and value.text.startswith("%"):
        yield value.text[1:]


def _hints(modules: Mapping[str, str], selector: str) -> Mapping[str, Any]:
    """The types of the parameters of "module.Class", a class without bases of this package; none of any other."""
    name, _, owner = selector.partition(".")
    module = modules.get(name, "")
    return _hints_of_class(module, owner) if module.startswith(f"{__package__.partition('.')[0]}.") else {}


@functools.cache
def _hints_of_class(module: str, owner: str) -> Mapping[str, Any]:
    spec = importlib.util.find_spec(module)
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8")) if spec and spec.origin else ast.Module([], [])
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == owner and not one.bases]
    fields = [one for each in classes for one in each.body if isinstance(one, ast.AnnAssign)]
    return {one.target.id: _hint(one.annotation) for one in fields if isinstance(one.target, ast.Name)}


def _hint(annotation: ast.expr) -> Any:
    """The type of an annotation of built-in types; Any of another one."""
    if isinstance(annotation, ast.BinOp):
        return typing.Union[_hint(annotation.left), _hint(annotation.right)]  # noqa: UP007
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return types.NoneType
    kind = getattr(builtins, annotation.id, Any) if isinstance(annotation, ast.Name) else Any
    return kind if kind in (int, float, str, bool) else Any
