"""Reading the plan of many runs: a TOML file in an experiment's folder, checked by a pydantic model of its tables.

The models are in `sweep.plan`, `matrix.plan`, `speedrun` and `references`.
"""

import re
import tomllib
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from t5xpg.base import paths
from t5xpg.base.errors import UserError, nearest

_HEADER = re.compile(r"\s*(?P<opening>\[{1,2})\s*(?P<name>[^\[\]#]+?)\s*\]{1,2}\s*(#.*)?")
_KEY = re.compile(r"\s*(?P<name>[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')\s*=")
_BINDING = re.compile(r"[\w./]+=.+")

# A place in a plan: keys of tables and numbers in lists, such as ("left_out", 1, "objectives", 0).
Place: TypeAlias = Sequence[str | int]


class Table(BaseModel):
    """A table of a plan. A key that is not a field is a mistake."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Mistake(NamedTuple):
    """A mistake and its place. value: the wrong string in the file, if it is one; it shows the line."""

    place: Place
    text: str
    value: object = None


class Plan(Table):
    """A whole plan."""

    def mistakes(self) -> Iterator[Mistake]:
        """Mistakes that show only when tables are compared, each of which is valid by itself."""
        yield from ()


def _check_gin_file(file: str) -> str:
    if not any((folder / file).is_file() for folder in (Path(), paths.REPOSITORY)):
        known_files = [str(path.relative_to(paths.REPOSITORY)) for path in paths.GIN.rglob("*.gin")]
        raise ValueError(f"there is no gin file {file}.{nearest(file, known_files)}")
    return file


def binding(text: str) -> str:
    """The text of a gin binding. Raises ValueError for one that binds nothing."""
    if not _BINDING.fullmatch(text):
        raise ValueError(f"{text!r} binds nothing: NAME=value is needed.")
    return text


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Text = Annotated[str, Field(min_length=1)]
GinFile = Annotated[str, AfterValidator(_check_gin_file)]
Binding = Annotated[str, AfterValidator(binding)]
Steps = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
AtLeastOne = Field(min_length=1)

_AnyPlan = TypeVar("_AnyPlan", bound=Plan)


def read(file: Path, model: type[_AnyPlan]) -> _AnyPlan:
    """The plan in a TOML file. Raises UserError that names the file and every mistake in it, with its line."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {error}") from None
    try:
        plan = model.model_validate(values)
        mistakes = list(plan.mistakes())
    except ValidationError as error:
        mistakes = [_mistake(model, each) for each in error.errors()]
    if mistakes:
        lines = [f"{paths.shown(file)}, line {line_of(text, one.place, one.value)}: {one.text}" for one in mistakes]
        several = [f"{len(lines)} mistakes in a plan:", *lines]
        raise UserError(lines[0] if len(lines) == 1 else "\n  ".join(several))
    return plan


def line_of(text: str, place: Place, value: object = None) -> int:
    """The line of a TOML text, counted from 1, at which a place stands; tomllib does not tell it.

    It is the line of the quoted value, or else of its key, or else of the table's header, or else the first line.
    """
    names = [part for part in place if isinstance(part, str)]
    index = next((part for part in place if isinstance(part, int)), 0)
    best, deepest, seen = 1, 0, 0
    table: list[str] = []
    here: list[str] = []
    is_other = False  # whether this is another one of several [[tables]] with the same name
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            table = here = [part.strip(" \"'") for part in header["name"].split(".")]
            is_list = header["opening"] == "[["
            seen += is_list and here == names[: len(here)]
            is_other = is_list and seen != index + 1
        elif key := _KEY.match(line):
            here = [*table, key["name"].strip("\"'")]
        depth = len(here) + (value is not None and any(f"{quote}{value}{quote}" in line for quote in "\"'"))
        if here == names[: len(here)] and not is_other and depth > deepest:
            best, deepest = number, depth
    return best


def _mistake(model: type[Plan], error: ErrorDetails) -> Mistake:
    """A mistake that pydantic found, with the table and the key as they stand in the file."""
    place, kind, value = error["loc"], error["type"], error["input"]
    if place[-1] == "[key]":  # the name of a table
        place = place[:-1]
    *tables, key = (part for part in place if isinstance(part, str))
    where = f"[{'.'.join(tables)}] {key}" if tables else key
    if kind == "missing":
        return Mistake(place, f"{where} is missing.")
    if kind == "extra_forbidden":
        return Mistake(place, f"{where} is not known.{nearest(key, _table_at(model, place[:-1]).model_fields)}")
    text = str(error["ctx"]["error"]) if kind == "value_error" else f"{error['msg']}, and it is {value!r}."
    return Mistake(place, f"{where}: {text}", value if isinstance(value, str) else None)


def _table_at(kind: Any, place: Place) -> type[Table]:
    """The model of the table at a place."""
    for key in place:
        is_table = isinstance(kind, type) and issubclass(kind, Table)
        kind = kind.model_fields[key].annotation if is_table else get_args(kind)[-1]  # of a dict or a list
        if get_origin(kind) in (Union, types.UnionType):  # a table or None
            kind = get_args(kind)[0]
    found: type[Table] = kind
    return found
