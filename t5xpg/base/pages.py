"""The text of pages: Markdown templates, in the package's `templates/`, filled in with the values of a record."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from t5xpg.base.markdown import UNKNOWN, cell, code, cut, decimals, escape, table
from t5xpg.base.paths import PACKAGE
from t5xpg.base.progress import duration

_Entry = Mapping[str, Any]


def render(template: str, **values: Any) -> str:
    """The text of a template, in which the values have their names. Of empty lines in a row, one is left."""
    return re.sub(r"\n{3,}", "\n\n", _ENVIRONMENT.get_template(template).render(**values)).strip()


def count(value: float | None) -> str:
    """A number without decimals, with commas for thousands."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def counts(groups: Iterable[Sequence[Any]]) -> str:
    """The different sizes of groups: "3", or "2 or 3"."""
    return " or ".join(map(str, sorted({len(group) for group in groups})))


def seeds_text(entries: Iterable[_Entry]) -> str:
    """The numbers of seeds of recipes: "1 seed", "2 or 3 seeds"."""
    text = counts(entry["seeds"] for entry in entries)
    return f"{text} {'seed' if text == '1' else 'seeds'}"


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if one of the values is missing, or if there are no values."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known and len(known) == len(values) else None


def mean_of(entry: _Entry, name: str) -> float | None:
    """The mean of a value over the seeds of an entry; None if the first seed has none."""
    values = [one[name] for one in entry["seeds"]]
    return None if values[0] is None else statistics.fmean(values)


def scalars(value: Mapping[str, Any], names: Sequence[str] | None = None) -> str:
    """The texts and whole numbers of a mapping, those of `names` or all: "kind bytes, size 384"."""
    chosen = value if names is None else [name for name in names if name in value]
    return ", ".join(f"{name} {value[name]}" for name in chosen if isinstance(value[name], str | int))


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(PACKAGE / "templates"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_ENVIRONMENT.globals.update(table=table)
_ENVIRONMENT.filters.update(
    by_mean=lambda entries, name: sorted(entries, key=lambda entry: mean_of(entry, name) or 0.0),
    cell=cell,
    code=code,
    count=count,
    counts=counts,
    cut=cut,
    decimals=decimals,
    duration=duration,
    md=escape,
    mean=mean,
    mean_of=mean_of,
    median=statistics.median,
    prefixed=lambda text, prefix: prefix + text,
    scalars=scalars,
    seeds_text=seeds_text,
    # the mark of a note: the site shows no HTML of a page
    superscript=lambda number: str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")),
    version_text=lambda versions: ", ".join(f"{name} {version}" for name, version in versions.items() if version),
)
