"""The graph of gin's bindings: those that the experiment reads, and the missing values. Nothing is built."""

import re
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Any, TypeAlias

from gin import config as gin
from t5xpg.base import paths
from t5xpg.base.errors import nearest
from t5xpg.experiment.gin_t5x import translation

MACRO = "gin.macro"
ROOT = "t5xpg.experiment.experiment.Experiment"
# A parameter of something configurable, in a scope ("" for all): ("train", "t5xpg.data.spec.DatasetConfig", "split").
Binding: TypeAlias = tuple[str, str, str]


def values_of(scope: tuple[str, ...], configurable: Any) -> dict[str, tuple[Binding, Any]]:
    """The arguments that gin gives to a call in a scope: parameter -> (binding, value). The innermost scope wins."""
    values: dict[str, tuple[Binding, Any]] = {}
    for depth in range(len(scope) + 1):
        where = "/".join(scope[:depth]), configurable.selector
        values |= {name: ((*where, name), value) for name, value in gin._CONFIG.get(where, {}).items()}
    return values


def parts_of(value: Any, scope: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any, bool]]:
    """The (scope, configurable, whether it is called) of every reference in a value that is read in a scope."""
    references = list(gin.iterate_references([value]))
    return [(tuple(one.scopes) or scope, one.configurable, one.evaluate) for one in references]


def bindings_read(unbound: Sequence[Any]) -> set[Binding]:
    """The bindings that building the experiment reads. unbound: references in values that could not be bound; they
    count as if they had been."""
    pending: list[tuple[tuple[str, ...], Any]] = []
    if ROOT in gin._REGISTRY:
        pending.append(((), gin._REGISTRY.get_match(ROOT)))
    pending += [(tuple(one.scopes), one.configurable) for one in gin.iterate_references(list(unbound))]
    seen: set[tuple[tuple[str, ...], str]] = set()
    read: set[Binding] = set()
    while pending:
        scope, configurable = pending.pop()
        if (scope, configurable.selector) not in seen:
            seen.add((scope, configurable.selector))
            for binding, value in values_of(scope, configurable).values():
                read.add(binding)
                pending += [(inner, part) for inner, part, _ in parts_of(value, scope)]
    return read


def macros() -> set[str]:
    """The macros that have a value; `%gin.REQUIRED` counts as one."""
    return {scope for scope, selector in gin._CONFIG if selector == MACRO}


def macros_referenced() -> set[str]:
    """The macros that values refer to."""
    references = gin.iterate_references(gin._CONFIG)
    names = {str(one.scoped_selector.rpartition("/")[0]) for one in references if one.configurable.selector == MACRO}
    return {name for name in names if "." not in name}  # without constants such as gin.REQUIRED


def undefined_macros(file: Path) -> list[str]:
    """A message for each macro that is used and has no value."""
    names = sorted(macros_referenced() - macros())
    return [f"%{name} is used in {file} or its includes, and nowhere set.{nearest(name, macros())}" for name in names]


def required_macros(file: Path) -> list[str]:
    """A message for each macro that the experiment has to set and does not."""
    values = {name: gin._CONFIG[name, MACRO].get("value") for name in sorted(macros())}
    names = [name for name, value in values.items() if is_required(value)]
    return [f"{name} has no value: set it in {file}, or pass --gin.{name}=…" for name in names]


def is_required(value: Any) -> bool:
    """True if a value is `%gin.REQUIRED`."""
    return str(getattr(value, "scoped_selector", "")).startswith("gin.REQUIRED")


def unread_message(binding: Binding, place: str) -> str:
    """The message for a binding without effect, because nothing reads it."""
    scope, selector, parameter = binding
    if selector == MACRO:
        return unused_macro(scope, place, macros_referenced())
    name = ".".join([*selector.split(".")[-2:], parameter])
    scoped = f"{scope}/{name}" if scope else name
    of_t5x = f" {translation(scope, selector, parameter)}" if selector.startswith("t5x.") else ""
    return f"{scoped} is bound, and nothing in this experiment reads it: remove it ({place}).{of_t5x}"


def unused_macro(name: str, place: str, used: Set[str]) -> str:
    """The message for a macro that no value refers to. used: the others."""
    near, of_t5x = nearest(name, used - {name}), translation("", "", name)
    hint = f" {of_t5x}" if of_t5x else near if "Did you mean" in near else ""
    return f"{name} is set, and nothing uses it ({place}).{hint}"


def unknown_macro(name: str, known: Iterable[str]) -> str:
    """The message for an override of a macro that there is not."""
    sets_it = re.compile(f"^{re.escape(name)} =", re.MULTILINE)
    all_files = sorted(paths.GIN.rglob("*.gin"))
    files = [paths.shown(file) for file in all_files if sets_it.search(file.read_text(encoding="utf-8"))]
    hint = f" --gin_file= can add one that does: {', '.join(files)}." if files else nearest(name, known)
    return translation("", "", name) or f"No gin file of this experiment knows {name}.{hint}"
