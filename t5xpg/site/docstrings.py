"""The public Python interface for the site: read from the source of `t5xpg.api`, which is not imported."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import t5xpg
from t5xpg.base import paths

SOURCE = paths.PACKAGE / "api.py"


@dataclass(frozen=True)
class Documented:
    """A function or class, with the methods of a class. signature: as "load(name: str) -> Model"."""

    name: str
    signature: str
    text: str
    methods: tuple["Documented", ...] = ()


def public() -> list[Documented]:
    """The functions, and then the classes, of `t5xpg.__all__`."""
    body = ast.parse(SOURCE.read_text(encoding="utf-8")).body
    documented = [
        _documented(node)
        for node in body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in t5xpg.__all__
    ]
    return sorted(documented, key=lambda one: one.name[0].isupper())


def _documented(node: ast.FunctionDef | ast.ClassDef) -> Documented:
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    if isinstance(node, ast.ClassDef):
        return Documented(node.name, f"class {node.name}", text, tuple(_methods(node)))
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    is_property = any(ast.unparse(one) == "property" for one in node.decorator_list)
    returns = f" -> {ast.unparse(node.returns)}".replace("'", "") if node.returns else ""
    return Documented(node.name, f"{node.name}{'' if is_property else f'({arguments})'}{returns}", text)


def _methods(node: ast.ClassDef) -> Iterator[Documented]:
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            yield _documented(one)
