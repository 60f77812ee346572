"""Builds objects from bindings: every part first by itself, so that each part reports its own mistakes."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gin import config as gin
from t5xpg.base.errors import UserError
from t5xpg.experiment.gin_graph import MACRO, Binding, is_required, parts_of, values_of
from t5xpg.experiment.gin_reading import message_of, shortened

FAILED = object()
_BUILDING = object()


@dataclass
class Builder:
    """Builds the experiment. bound_at: the place of each binding. complete: whether every statement could be read."""

    bound_at: Mapping[Binding, str]
    complete: bool
    problems: list[str] = field(default_factory=list)
    _built: dict[Any, Any] = field(default_factory=dict)

    def build(self, scope: tuple[str, ...], configurable: Any) -> Any:
        """The object, or FAILED where it or a part of it cannot be made; `problems` then has the reason."""
        key = scope, configurable.selector
        if key not in self._built:
            self._built[key] = _BUILDING
            self._built[key] = self._build(scope, configurable)
        if self._built[key] is _BUILDING:
            name = "/".join(scope) if configurable.selector == MACRO else configurable.wrapped.__name__
            self.problems.append(f"{name} is a part of itself.")
            return FAILED
        return self._built[key]

    def _build(self, scope: tuple[str, ...], configurable: Any) -> Any:
        wrapped, is_macro, values = configurable.wrapped, configurable.selector == MACRO, values_of(scope, configurable)
        problems: list[str] = []
        parts_built = True
        for parameter, (binding, value) in values.items():
            for inner, part, is_called in parts_of(value, scope):
                parts_built &= not is_called or self.build(inner, part) is not FAILED
            parts_built &= not is_required(value)
            if not is_macro and (problem := self._type_problem(wrapped, parameter, binding, value)):
                problems.append(problem)
        missing = [name for name in _required_parameters(wrapped) if name not in values]
        if self.complete and not is_macro:  # a macro without a value has been reported
            problems += [f"{wrapped.__name__}.{name} has no value: it has to be set." for name in missing]
        self.problems += problems
        if problems or missing or not parts_built:
            return FAILED
        try:
            with gin.config_scope(list(scope)):
                return configurable.wrapper()
        except UserError as error:
            self.problems.append(message_of(error))
        except (TypeError, ValueError) as error:
            self.problems.append(f"A value for {wrapped.__name__} is not of the right kind: {message_of(error)}.")
        return FAILED

    def _type_problem(self, owner: Any, parameter: str, binding: Binding, value: Any) -> str | None:
        name = f"{owner.__name__}.{parameter}"
        macros: set[str] = set()
        while isinstance(value, gin.ConfigurableReference) and value.configurable.selector == MACRO:
            macro = "/".join(value.scopes)
            if macro in macros:
                return None  # a macro that is a part of itself: `build` reports it
            macros.add(macro)
            binding, value = (macro, MACRO, "value"), gin._CONFIG.get((macro, MACRO), {}).get("value", FAILED)
            name = f"{macro} ({owner.__name__}.{parameter})"
        place = f" ({self.bound_at[binding]})" if binding in self.bound_at else ""
        if isinstance(value, gin.ConfigurableReference):
            lacks_call = not value.evaluate and inspect.isclass(value.configurable.wrapped)
            return f"{name} is {value}, a class: write {value}(){place}." if lacks_call else None
        if value is FAILED or any(gin.iterate_references([value])):
            return None
        try:
            hint = typing.get_type_hints(owner if inspect.isfunction(owner) else owner.__init__).get(parameter, Any)
        except NameError:  # of a class whose module imports names for type checkers alone
            return None
        return type_problem(name, value, hint, place)


def _required_parameters(function: Any) -> list[str]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind not in variadic]


def type_problem(name: str, value: Any, hint: Any, place: str) -> str | None:
    """The message for a literal that is no value of a parameter with this annotation; None for one that is."""
    return None if _fits(value, hint) else f"{name} must be {_expected(hint)}, not {shortened(repr(value))}{place}."


def _fits(value: Any, hint: Any) -> bool:
    """True if a literal of a gin file is a valid value of a parameter with this annotation."""
    kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if kind in (int, float):
        return isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    if kind in (str, bool, types.NoneType):
        return isinstance(value, kind)
    if kind is tuple:  # one string for several: MODULE_IMPORT=my_tasks
        return isinstance(value, (tuple, list)) or (str in arguments and isinstance(value, str))
    if inspect.isclass(kind) and issubclass(kind, Mapping):
        return isinstance(value, Mapping)
    return not dataclasses.is_dataclass(kind)


_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", tuple: "a tuple"}


def _expected(hint: Any) -> str:
    kind = typing.get_origin(hint) or hint
    if kind in (typing.Union, types.UnionType):
        return " or ".join(_expected(each) for each in typing.get_args(hint))
    if dataclasses.is_dataclass(kind):
        return f"a reference to {getattr(kind, '__name__', kind)}, as @module.{getattr(kind, '__name__', kind)}()"
    if inspect.isclass(kind) and issubclass(kind, Mapping):
        return "a dict"
    return _NAMES.get(kind) or ("None" if kind is types.NoneType else str(getattr(kind, "__name__", kind)))
