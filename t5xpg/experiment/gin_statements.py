"""The statements of a gin file: parsed, and for files of other programs kept as written, without binding anything."""

import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gin import config_parser
from t5xpg.base.errors import UserError


def parse(text: str, delegate: config_parser.ParserDelegate, source: str) -> Iterator[Any]:
    """The statements of a text. Raises UserError, naming `source` and the line, where gin cannot read on."""
    try:
        yield from config_parser.ConfigParser(text, delegate)
    except (SyntaxError, TypeError, ValueError, RecursionError, tokenize.TokenError) as error:
        line = getattr(error, "lineno", None) or (error.args[-1][0] if len(error.args) > 1 else None)
        place = f"{source}, line {line}" if line else source
        reason = str(getattr(error, "msg", None) or error.args[0]).strip().splitlines()[0].rstrip(".")
        raise UserError(f"gin cannot read {place}: {reason}.") from None


@dataclass(frozen=True)
class GinReference:
    """A reference in a value, as written: "@scope/module.Class()", or a macro, "%NAME"."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Import:
    """An import of a module, by its whole name. name: its name in the file, or the first part of its name."""

    module: str
    name: str
    place: str


@dataclass(frozen=True)
class Include:
    """An include of a file that was not read."""

    file: str
    place: str


@dataclass(frozen=True)
class BoundValue:
    """A binding of a macro ("", "", NAME), or of a parameter (scope, "module.Class", parameter), to a value."""

    scope: str
    selector: str
    parameter: str
    value: Any
    place: str

    @property
    def text(self) -> str:
        """The binding as gin writes it."""
        scope = f"{self.scope}/" if self.scope else ""
        selector = f"{self.selector}." if self.selector else ""
        return f"{scope}{selector}{self.parameter} = {self.value!r}"


Statement = Import | Include | BoundValue


def statements(
    file: Path, resolve: Callable[[str, Path], Path | None], including: tuple[Path, ...] = ()
) -> Iterator[Statement]:
    """The statements of a file, with the statements of each included file in the place of its include.

    resolve: (name in an include, file that has it) -> the file to read; None leaves the include as it is. including:
    the files that include this one. Raises UserError where a file cannot be read, is not gin, or includes itself.
    """
    if file.resolve() in including:
        raise UserError(f"{file} includes itself.")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"There is no gin file {file}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is no text ({error.reason}).") from None
    for one in parse(text, AsWritten(), str(file)):
        place = f"{file.name}, line {one.location.line_num}"
        if isinstance(one, config_parser.ImportStatement):
            yield Import(one.module, one.bound_name(), place)
        elif isinstance(one, config_parser.IncludeStatement):
            if (other := resolve(one.filename, file)) is None:
                yield Include(one.filename, place)
            else:
                yield from statements(other, resolve, (*including, file.resolve()))
        elif isinstance(one, config_parser.BindingStatement):
            selector, parameter = (one.selector, one.arg_name) if one.arg_name else ("", one.selector)
            yield BoundValue(one.scope or "", selector, parameter, one.value, place)


class AsWritten(config_parser.ParserDelegate):
    """Makes a `GinReference` of every reference and macro in a value."""

    def configurable_reference(self, scoped_selector: str, evaluate: bool) -> GinReference:
        return GinReference(f"@{scoped_selector}{'()' if evaluate else ''}")

    def macro(self, macro_name: str) -> GinReference:
        return GinReference(f"%{macro_name}")


def value_as_written(text: str) -> Any:
    """The value that a text stands for, with its references as written. Raises UserError where gin cannot read it."""
    *_, statement = parse(f"x = {text}", AsWritten(), "")
    return statement.value


def names_of(value: Any, sign: str) -> Iterator[str]:
    """The macros ("%"), or the references ("@"), in a value as written, without the sign."""
    if isinstance(value, dict | list | tuple):
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from names_of(one, sign)
    elif isinstance(value, GinReference) and value.text.startswith(sign):
        yield value.text[1:]
