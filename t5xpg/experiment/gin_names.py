"""Misspelt names and values of the wrong type that the text of a configuration shows: nothing is imported for them."""

import ast
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError, nearest
from t5xpg.experiment.gin_building import type_problem
from t5xpg.experiment.gin_graph import unknown_macro, unused_macro
from t5xpg.experiment.gin_reading import NAME, find_gin_file, literal, shortened
from t5xpg.experiment.gin_statements import BoundValue, GinReference, Import, names_of, statements, value_as_written

_KINDS = {"int": int, "float": float, "str": str, "bool": bool, "None": types.NoneType}


def mistakes(file: Path, gin_files: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The messages of `config.examine` for macros that no file knows or uses, parameters that do not exist and values
    of the wrong type, as far as the texts tell; none where one of them cannot be read."""
    typed = [tuple(part.strip() for part in override.partition("=")[::2]) for override in overrides]
    try:
        files = [file, *(find_gin_file(name) or Path(name) for name in gin_files)]
        read = [one for each in files for one in statements(each, lambda name, _: find_gin_file(name) or Path(name))]
        given = [value_as_written(literal(text)) for _, text in typed]
    except UserError:  # `config.examine` says all that is wrong
        return []
    bound = [one for one in read if isinstance(one, BoundValue)]
    macros = [one for one in bound if not one.selector]
    used = {macro for value in [*(one.value for one in bound), *given] for macro in names_of(value, "%")}
    known = used | {one.parameter for one in macros}
    found = [unused_macro(one.parameter, one.place, used) for one in macros if one.parameter not in used]
    hints = {one.name: one.module for one in read if isinstance(one, Import)}
    for (name, _), value, override in zip(typed, given, overrides, strict=True):
        place = shortened(f"--gin.{override}")
        if "." not in name and name not in known and NAME.fullmatch(name):
            found.append(f"{place}: {unknown_macro(name, known)}")
        for one in bound:
            if one.selector and repr(one.value) == f"%{name}" and not isinstance(value, GinReference):
                owner, hint = one.selector.rpartition(".")[2], _hints(hints, one.selector).get(one.parameter, Any)
                found += filter(None, [type_problem(f"{name} ({owner}.{one.parameter})", value, hint, f" ({place})")])
        selector, _, parameter = name.rpartition("/")[2].rpartition(".")
        if (fields := _hints(hints, selector)) and parameter not in fields:
            owner = selector.rpartition(".")[2]
            found.append(f"{place}: {owner} has no parameter named '{parameter}'.{nearest(parameter, fields)}")
    return list(dict.fromkeys(found))


def _hints(modules: Mapping[str, str], selector: str) -> Mapping[str, Any]:
    """The types of the parameters of "module.Class", a class without bases of this package; none of any other."""
    name, _, owner = selector.partition(".")
    module = modules.get(name, "")
    return _hints_of_class(module, owner) if module.startswith(f"{paths.PACKAGE.name}.") else {}


@functools.cache
def _hints_of_class(module: str, owner: str) -> Mapping[str, Any]:
    source = paths.PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(source.read_text(encoding="utf-8") if source.is_file() else "")
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == owner and not one.bases]
    fields = [one for each in classes for one in each.body if isinstance(one, ast.AnnAssign)]
    return {one.target.id: _hint(one.annotation) for one in fields if isinstance(one.target, ast.Name)}


def _hint(annotation: ast.expr) -> Any:
    """The type of an annotation of built-in types; Any of another one."""
    if isinstance(annotation, ast.BinOp):
        return typing.Union[_hint(annotation.left), _hint(annotation.right)]  # noqa: UP007
    return _KINDS.get(ast.unparse(annotation), Any)
