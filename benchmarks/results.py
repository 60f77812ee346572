"""bench/results.json, and the block of the README that is made of it and of nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import REPOSITORY, Found, Goal, Row
from benchmarks.table import command, markdown
from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, write_json, write_text

RESULTS = REPOSITORY / "bench" / "results.json"
README = REPOSITORY / "README.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
NOTE = "<!-- Written by `make bench` from bench/results.json. Do not edit. -->"


def to_json(row: Row) -> dict[str, Any]:
    """A row with all its values, and what follows from them."""
    contestants: dict[str, Any] = {}
    for name in row.contestants:
        if name in row.found.missing:
            contestants[name] = {"missing": row.found.missing[name]}
        values = row.found.values.get(name)
        if values:
            contestants[name] = {
                **contestants.get(name, {}),
                "values": list(values),
                "median": row.median(name),
                "spread": row.spread(name),
                "ours_is_times_as_good": row.ratio(name),
            }
    return {
        "name": row.name,
        "what": row.what,
        "unit": row.unit,
        "better": row.better,
        "fixed": row.fixed,
        "command": command(row),
        "goal": None if row.goal is None else dataclasses.asdict(row.goal),
        "reached": row.reached(),
        "contestants": contestants,
        "facts": dict(row.facts),
    }


def from_json(value: Mapping[str, Any]) -> Row:
    """The row that `to_json` wrote."""
    contestants = value["contestants"]
    return Row(
        name=value["name"],
        what=value["what"],
        unit=value["unit"],
        better=value["better"],
        fixed=value["fixed"],
        goal=None if value["goal"] is None else Goal(**value["goal"]),
        facts=value["facts"],
        found=Found(
            {name: tuple(one["values"]) for name, one in contestants.items() if "values" in one},
            {name: one["missing"] for name, one in contestants.items() if "missing" in one},
        ),
    )


def block(results: Mapping[str, Any]) -> str:
    """The README's block, markers included."""
    rows = [from_json(row) for row in results["rows"]]
    return "\n\n".join([BEGIN, NOTE, markdown(rows, results), END])


def publish(
    rows: Sequence[Row], described: Mapping[str, Any], *, results: Path = RESULTS, readme: Path = README
) -> None:
    """Write the results and put their block into the README. Raises UserError where that has no markers for it."""
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{readme} has no {BEGIN} … {END}: put both where the table is to stand.")
    found = {**described, "rows": [to_json(row) for row in rows]}
    write_json(results, found)
    write_text(readme, before + block(read_json(results)) + after)
