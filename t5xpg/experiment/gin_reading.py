"""Reads gin files and overrides statement by statement, so that a mistake in one does not hide mistakes in others."""

import contextlib
import inspect
import re
import sys
import traceback
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gin import config as gin
from gin import config_parser
from t5xpg.base import paths
from t5xpg.base.errors import UserError, nearest
from t5xpg.experiment.gin_graph import MACRO, Binding, unknown_macro
from t5xpg.experiment.gin_statements import parse, value_as_written
from t5xpg.experiment.gin_t5x import CONVERT, translation

NAME = re.compile(r"\w[\w./-]*")  # of a macro, or of a parameter with its scopes, modules and class


@dataclass
class Reader:
    """Feeds statements to gin one by one, keeps a message about each mistake, and goes on.

    bound_at: the place of each binding: a line of a file, or an override. overridden: the bindings of the command line.
    incomplete: whether some text could not be read, which may have had the values that seem to be missing. unbound: the
    references in values that could not be bound. replaced: the references in values that later bindings replaced.
    files: those that were read.
    """

    problems: list[str] = field(default_factory=list)
    bound_at: dict[Binding, str] = field(default_factory=dict)
    overridden: set[Binding] = field(default_factory=set)
    incomplete: bool = False
    unbound: list[Any] = field(default_factory=list)
    replaced: list[Any] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    _open_files: list[Path] = field(default_factory=list)

    def include(self, name: str, place: str = "") -> None:
        """Read a gin file. name: its path from the current folder or from the root of the checkout."""
        if (gin_file := find_gin_file(name)) is None:
            known = [str(file.relative_to(paths.REPOSITORY)) for file in paths.GIN.rglob("*.gin")]
            hint = CONVERT if name.startswith("t5x/") else nearest(name, known)
            self._cannot_read(f"There is no gin file {name}.{hint}{place}")
        elif gin_file.resolve() in self._open_files:
            self._cannot_read(f"The gin file {name} includes itself{place}.")
        else:
            try:
                text = gin_file.read_text(encoding="utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                self._cannot_read(f"The gin file {name} cannot be read: {error}{place}.")
                return
            self.files.append(gin_file.resolve())
            self._open_files.append(gin_file.resolve())
            self._read(text, file=paths.shown(gin_file))
            self._open_files.pop()

    def override(self, text: str, known_macros: Collection[str]) -> None:
        """Read "NAME=value"."""
        name, separator, value = (part.strip() for part in text.partition("="))
        # a second line would be another statement, and a line that starts with # a comment
        if not separator or not NAME.fullmatch(name) or len(text.splitlines()) > 1:
            self.problems.append(f"Cannot read {shortened(f'--gin.{text}')}: expected --gin.NAME=value on one line.")
        elif "." in name or name in known_macros or self.incomplete:
            enabling = "from __gin__ import dynamic_registration"  # has to come first
            imports = {statement.format() for statement in gin._IMPORTS} - {enabling}
            line = f"{name} = {literal(value)}"
            self._read("\n".join([enabling, *sorted(imports), line]), override=shortened(f"--gin.{text}"))
        else:
            self.problems.append(f"{shortened(f'--gin.{text}')}: {unknown_macro(name, known_macros)}")

    def _read(self, text: str, *, file: str = "", override: str = "") -> None:
        """Apply every statement of a text, which is from a file or is an override (as it was typed)."""
        unknown: set[str] = set()  # each unknown name is reported once
        with gin._parse_scope() as context:
            for statement in self._statements(text, file, override):
                place = override or f"{file}, line {statement.location.line_num}"
                try:
                    if not unknown.intersection(_names_used(statement)):
                        self._apply(statement, context, place)
                        continue
                except Exception as error:
                    if _raised_inside_package(error):
                        raise
                    unresolved = isinstance(error, NameError) and any(f"'{name}'" in str(error) for name in unknown)
                    if not unresolved:
                        problem = _of_t5x(statement, error) or _explain(error)
                        self.problems.append(f"{override}: {problem}" if override else f"{problem} ({place})")
                    unknown.update(_names_defined(statement))
                    self.incomplete |= not override and isinstance(statement, config_parser.ImportStatement)
                self._keep_unbound(statement, override)
            gin._IMPORTS.update(context.imports)
        if override:
            self.overridden.update(binding for binding, place in self.bound_at.items() if place == override)

    def _statements(self, text: str, file: str, override: str) -> Iterator[Any]:
        try:
            yield from parse(text, _Delegate(), file)
        except UserError as error:
            if override:
                self.problems.append(f"{override}: gin cannot read it: {str(error).partition(': ')[2]}")
            else:
                self._cannot_read(str(error))

    def _apply(self, statement: Any, context: Any, place: str) -> None:
        if isinstance(statement, config_parser.IncludeStatement):
            self.include(statement.filename, f" ({place})")
        elif isinstance(statement, config_parser.ImportStatement):
            context.process_import(statement)
        elif isinstance(statement, config_parser.BlockDeclaration):
            context.get_configurable(statement.selector)
        else:
            key = (statement.scope, statement.selector, statement.arg_name)
            if not statement.arg_name:  # a macro: NAME = value
                key = (f"{statement.scope}/{statement.selector}".removeprefix("/"), MACRO, "value")
            scope, selector, parameter = binding = gin.ParsedBindingKey.parse(key).scope_selector_arg
            for part in gin._iterate_flattened_values(statement.value):
                if isinstance(part, _Unresolved):
                    raise part.error
            self.replaced += gin.iterate_references([gin._CONFIG.get((scope, selector), {}).get(parameter)])
            gin.bind_parameter(key, statement.value)
            self.bound_at[binding] = place

    def _keep_unbound(self, statement: Any, override: str) -> None:
        """Keep the references of a wrong statement, because a right one in its place would have had them."""
        value = getattr(statement, "value", None)
        self.unbound += gin.iterate_references([value])
        unresolved = any(isinstance(part, _Unresolved) for part in gin._iterate_flattened_values([value]))
        self.incomplete |= unresolved and not override

    def _cannot_read(self, problem: str) -> None:
        self.problems.append(problem)
        self.incomplete = True


def _of_t5x(statement: Any, error: Exception) -> str:
    """A sentence on a binding with a name of T5X, which this experiment has not; "" if anything else is wrong."""
    if isinstance(statement, config_parser.IncludeStatement | config_parser.ImportStatement):
        return f"{error}.{CONVERT}" if getattr(statement, "module", "").partition(".")[0] == "t5x" else ""
    parts = gin._iterate_flattened_values(getattr(statement, "value", None))
    if any(error is part.error for part in parts if isinstance(part, _Unresolved)):
        return ""
    return translation(statement.scope or "", statement.selector, getattr(statement, "arg_name", None) or "*")


def _names_used(statement: Any) -> set[str]:
    """The selector of a statement, and the import name that it begins with."""
    selector = str(getattr(statement, "selector", ""))
    return {selector, selector.partition(".")[0]} if "." in selector else set()


def _names_defined(statement: Any) -> set[str]:
    """The names that a statement defines; if it fails, so do all later statements with these names."""
    if isinstance(statement, config_parser.ImportStatement):
        return {statement.bound_name()}
    return {statement.selector} if isinstance(statement, config_parser.BlockDeclaration) else set()


@dataclass(frozen=True)
class _Unresolved:
    """A reference in a value that cannot be resolved; the error is raised when its whole statement has been read."""

    error: Exception


class _Delegate(gin.ParserDelegate):
    def configurable_reference(self, scoped_selector: str, evaluate: bool) -> Any:
        try:
            return super().configurable_reference(scoped_selector, evaluate)
        except (NameError, AttributeError, ValueError) as error:
            return _Unresolved(error)


def find_gin_file(name: str) -> Path | None:
    """The gin file of a path from the current folder or from the root of the checkout; None where there is none."""
    return next((path for path in (Path(name), paths.REPOSITORY / name) if path.is_file()), None)


def literal(value: str) -> str:
    """The value as a gin literal. Text that gin cannot parse is quoted as a string, unless it begins with @ or %."""
    with contextlib.suppress(UserError, MemoryError):
        value_as_written(value)  # the whole value: gin.parse_value reads a beginning of it
        return value
    return value if value[:1] in ("@", "%") else repr(value)


def shortened(text: str) -> str:
    """A user's text on one line, cut to 100 characters."""
    text = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return text if len(text) <= 100 else text[:99] + "…"


def message_of(error: Exception) -> str:
    """The message of an error without the lines in which gin lists the calls before it."""
    lines = str(error).splitlines()
    return "\n".join(line for line in lines if line.strip() and not line.startswith("  In call to configurable"))


def _raised_inside_package(error: Exception) -> bool:
    """True if the error was raised in this package, outside this module: then the gin file is not at fault."""
    frames = traceback.extract_tb(error.__traceback__)
    file = frames[-1].filename if frames else ""
    return file.startswith(str(paths.PACKAGE)) and file != __file__


def _explain(error: Exception) -> str:
    """The message for an error in a statement, with the nearest names."""
    text = message_of(error)
    if match := re.search(r"Configurable '([\w./]+)' doesn't have a parameter named '(\w+)'", text):
        classes = [item for name, item in gin._REGISTRY.items() if f".{name}".endswith(f".{match[1]}")]
        known = list(inspect.signature(classes[0].wrapped).parameters) if classes else []
        return f"{match[1]} has no parameter named '{match[2]}'.{nearest(match[2], known)}"
    if match := re.search(r"<module '([\w.]+)'.* has no attribute '?(\w+)'?", text):
        members = [(name, one) for name, one in vars(sys.modules[match[1]]).items() if not name.startswith("_")]
        known = [name for name, one in members if callable(one) and getattr(one, "__module__", None) == match[1]]
        return f"There is no {match[2]}.{nearest(match[2], known)}"
    if match := re.search(r"'(\w+)' was not provided by an import statement", text):
        known = [statement.bound_name() for statement in gin._IMPORTS]
        if match[1] in known:
            return f"This file does not import {match[1]}, as others do: write it at the top."
        return f"No gin file of this experiment imports {match[1]}.{nearest(match[1], known)}"
    return f"{text or type(error).__name__}.".replace("..", ".")
