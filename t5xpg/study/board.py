"""Common parts of all boards, and their pages: Markdown templates, beside this file, with values of the board."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from t5xpg.base.markdown import UNKNOWN, code, decimals, escape, table
from t5xpg.base.progress import duration

FORMAT = 1
_Entry = Mapping[str, Any]


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A measure, rounded as boards keep it."""
    return None if value is None else round(value, digits)


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if one of the values is missing, or if there are no values."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known and len(known) == len(values) else None


def render(template: str, board: Mapping[str, Any], **values: Any) -> list[str]:
    """The text of a page: that of a template, in which `board` and the values have their names."""
    text = _ENVIRONMENT.get_template(template).render(board=board, **values)
    return [re.sub(r"\n{3,}", "\n\n", text).strip()]


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


def mean_of(entry: _Entry, name: str) -> float | None:
    """The mean of a value over the seeds of an entry; None if the first seed has none."""
    values = [one[name] for one in entry["seeds"]]
    return None if values[0] is None else statistics.fmean(values)


def superscript(number: int) -> str:
    """The number in superscript characters, as the mark of a note: the site shows no HTML of a page."""
    return str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals.update(table=table)
_ENVIRONMENT.filters.update(
    by_mean=lambda entries, name: sorted(entries, key=lambda entry: mean_of(entry, name) or 0.0),
    code=code,
    count=count,
    counts=counts,
    decimals=decimals,
    duration=duration,
    md=escape,
    mean_of=mean_of,
    median=statistics.median,
    prefixed=lambda text, prefix: prefix + text,
    seeds_text=seeds_text,
    superscript=superscript,
    version_text=lambda versions: ", ".join(f"{name} {version}" for name, version in versions.items() if version),
)
