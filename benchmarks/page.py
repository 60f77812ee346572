"""The measurements as tables: for the terminal, in docs/benchmarks.md (all of them) and in README.md (the main rows).

benchmarks/results/results.json has the numbers that were measured last on each kind of processor; both pages are made
from it and from nothing else. docs/benchmarks.md also has a table for each kind of GPU, from gpu.json beside it.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import REPOSITORY, Found, Goal, Row, number
from t5xpg.base.errors import UserError
from t5xpg.base.files import json_text, read_json, write_texts
from t5xpg.base.markdown import aligned, block_of, escape, table
from t5xpg.base.progress import duration

RESULTS = REPOSITORY / "benchmarks" / "results" / "results.json"
GPU_RESULTS = RESULTS.with_name("gpu.json")
README, PAGE = REPOSITORY / "README.md", REPOSITORY / "docs" / "benchmarks.md"
HEADER = ("what", "contestant", "goal", "median", "spread", "ours is")
MISSING = "-"
VERDICTS = {True: "reached", False: "missed", None: "not known"}  # of a goal
Machine = Mapping[str, Any]  # one kind of processor: `machine.describe`, and "rows"
# The rows of the README: how their quantities begin, and what it calls them.
MAIN_ROWS = {
    "training step in bfloat16, emb 128": "a training step of a small model, bfloat16",
    "training step in float32, emb 128": "the same step, float32",
    "training step in bfloat16, emb 256": "a training step of a model twice as wide, bfloat16",
    "start to first step done, kept programs": "from the command to the first update, when it was run before",
    "caching a task": "caching a task",
    "greedy decoding, emb 128": "greedy decoding, a small model",
    "greedy decoding, emb 512": "greedy decoding, the size of T5 small",
    "training stands still for a checkpoint": "training waits for a checkpoint",
}


def to_json(row: Row) -> dict[str, Any]:
    """A row with all its values, and what follows from them."""
    value = dataclasses.asdict(row)
    found, facts = value.pop("found"), value.pop("facts")
    contestants: dict[str, Any] = {name: {"missing": reason} for name, reason in found["missing"].items()}
    for name, values in found["values"].items():
        contestants.setdefault(name, {}).update(
            values=values, median=row.median(name), spread=row.spread(name), ours_is_times_as_good=row.ratio(name)
        )
    ours_first = {name: contestants[name] for name in row.contestants}
    return value | {"reached": row.reached(), "contestants": ours_first, "facts": facts}


def from_json(value: Mapping[str, Any]) -> Row:
    """The row that `to_json` wrote."""
    contestants = value["contestants"].items()
    found = Found(
        {name: tuple(one["values"]) for name, one in contestants if "values" in one},
        {name: one["missing"] for name, one in contestants if "missing" in one},
    )
    plain = {name: value[name] for name in ("name", "what", "unit", "better", "fixed", "command", "facts")}
    return Row(**plain, goal=value["goal"] and Goal(**value["goal"]), found=found)


def publish(rows: Sequence[Row], described: Mapping[str, Any]) -> None:
    """Write the results, which replace earlier ones of the same kind of processor, and the block of each page. Raises
    UserError where a page has no markers for it."""
    measured = {**described, "rows": [to_json(row) for row in rows]}
    others = read_machines(RESULTS) if RESULTS.exists() else []
    machines = [measured, *(one for one in others if one["kind"] != measured["kind"])]
    write(RESULTS, {"machines": machines}, {README: main_block(machines), PAGE: full_block(machines)})


def write(results: Path, value: Any, blocks: Mapping[Path, str]) -> None:
    """Write results and the block of each page, markers included, in place of the one that it has. Raises UserError
    where a page has no such markers."""
    pages = {}
    for file, new in blocks.items():
        page, (begin, *_, end) = file.read_text(encoding="utf-8"), new.splitlines()
        if not (old := block_of(page, begin, end, file)):
            raise UserError(f"{file} has no {begin} … {end}: put both where the table is to stand.")
        pages[file] = page.replace(old, new)
    write_texts({results: json_text(value), **pages})


def block(name: str, results: Path, sections: Sequence[str]) -> str:
    """What `make <name>` writes into a page, between its markers."""
    note = f"<!-- Written by `make {name}` from {results.relative_to(REPOSITORY)}. Do not edit. -->"
    return "\n\n".join([f"<!-- {name}:begin -->", note, *sections, f"<!-- {name}:end -->"])


def read_machines(results: Path = RESULTS) -> list[Machine]:
    """What was measured on each kind of processor, the newest first."""
    return list(read_json(results)["machines"])


def main_block(machines: Sequence[Machine]) -> str:
    """The README's block, markers included: what was measured last, a line a row, in words."""
    newest, rows = machines[0], [from_json(row) for row in machines[0]["rows"]]
    lines = []
    for start, title in MAIN_ROWS.items():
        # "caching a task" is the beginning of "caching a task, memory", too: the first one that fits is meant
        if row := next((row for row in rows if row.what.startswith(start)), None):
            median = _numbers(row, row.contestants[0])[0] or MISSING
            lines.append([title, f"{median} {row.unit}", escape(_others(row)) or MISSING])
    table_of_rows = table(("what", "t5xpg", "t5xpg is"), lines)
    return block("bench", RESULTS, [escape(machine_text(newest)), table_of_rows])


def full_block(machines: Sequence[Machine]) -> str:
    """The block of docs/benchmarks.md, markers included: the machines, all rows side by side, and what their
    contestants share."""
    of_each = [{row.what: row for row in map(from_json, one["rows"])} for one in machines]
    newest = {row.what: row for rows in reversed(of_each) for row in rows.values()}
    lines = []
    for what, row in newest.items():
        found = [rows.get(what) for rows in of_each]
        rows = [one and dataclasses.replace(one, goal=row.goal) for one in found]  # earlier ones had other goals
        title, goal = f"{what} ({row.unit})", goal_text(row)
        for name in dict.fromkeys(name for one in rows if one is not None for name in one.contestants):
            each = [MISSING if one is None else _measured(one, name) for one in rows]
            lines.append([escape(cell) for cell in (title, name, goal, *each)])
            title = goal = ""
    notes: dict[tuple[str, str], list[str]] = {}
    for row in newest.values():
        notes.setdefault((row.command, row.fixed), []).append(row.what)
    listed = [
        f"- `{typed}`: {escape('; '.join(what))}. {'Each' if len(what) > 1 else 'With'}: {escape(fixed)}."
        for (typed, fixed), what in notes.items()
    ]
    header = (*HEADER[:3], *(escape(one["kind"]) for one in machines))
    sections = [*(escape(machine_text(one)) for one in machines), table(header, lines), "\n".join(listed)]
    return block("bench", RESULTS, sections)


def _measured(row: Row, name: str) -> str:
    """ "249, spread 11%, 1.43 x" of one contestant; of ours also whether the goal is reached; or why there is none."""
    median, spread, ratio = _numbers(row, name)
    if not median:
        return row.found.missing.get(name, MISSING)
    said = VERDICTS[row.reached()] if row.goal and name == row.contestants[0] else ""
    return ", ".join(filter(None, [median, spread and f"spread {spread}", ratio, said]))


def text(rows: Sequence[Row]) -> str:
    """The rows for a terminal: a table each, what is the same for all contestants, and the command."""
    shown = []
    for row in rows:
        lines = [[name, *numbers, said] for _, name, said, *numbers in cells(row)]
        shown += [f"{row.what} ({row.unit})", *aligned(("", *HEADER[3:], ""), lines), row.fixed, row.command, ""]
    return "\n".join(shown).rstrip("\n")


def cells(row: Row) -> Iterator[list[str]]:
    """The table's lines for one row: one for each contestant, ours first; with the reason where a value is missing."""
    title, goal = f"{row.what} ({row.unit})", f"{goal_text(row)}: {VERDICTS[row.reached()]}" if row.goal else ""
    for name in row.contestants:
        median, spread, ratio = _numbers(row, name)
        said = "; ".join(filter(None, [goal, "" if median else row.found.missing.get(name, "")]))
        yield [title, name, said, median or MISSING, spread or MISSING, ratio]
        title = goal = ""


def _numbers(row: Row, name: str) -> tuple[str, str, str]:
    """Median, spread and ratio of a contestant; "" where there is none."""
    median, spread = row.median(name), row.spread(name)
    ratio = None if name == row.contestants[0] else row.ratio(name)
    return (
        "" if median is None else number(median),
        "" if spread is None else f"{100 * spread:.0f}%",
        "" if ratio is None else f"{ratio:.2f} x",
    )


def _others(row: Row) -> str:
    """ "2.8 times as fast as T5X (534 ms)", of each other program that has a value."""
    ratios = ((name, row.ratio(name)) for name in row.contestants[1:] if not name.startswith("its "))
    return "; ".join(
        f"{ratio:.1f} times as fast as {name} ({_numbers(row, name)[0]} {row.unit})"
        for name, ratio in ratios
        if ratio is not None
    )


def goal_text(row: Row) -> str:
    """The goal of a row; "" for none."""
    if (goal := row.goal) is None:
        return ""
    limit, word = (goal.at_least, "at least") if goal.at_most is None else (goal.at_most, "at most")
    return f"{word} {number(limit or 0.0)} {row.unit if goal.against is None else f'x {goal.against}'}"


def commit_text(git: Mapping[str, Any] | None) -> str:
    """The commit of a `git_state`; "" for none."""
    return "" if git is None else f"commit {git['commit'][:12]}{'' if git['clean'] else ' with changes'}"


def machine_text(described: Machine) -> str:
    """One sentence on where and when the measurements were made."""
    machine, peak, git = described["machine"], described["peak_flops"], described["git"]
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB" if machine["memory_bytes"] else ""
    facts = [described["kind"], *filter(None, [memory]), machine["platform"], described["time"]]
    peaks = [f"{peak[dtype] / 1e9:,.0f} GFLOP/s in {dtype}" for dtype in ("float32", "bfloat16") if dtype in peak]
    if peaks:
        facts.append(f"matrix products at {' and '.join(peaks)}")
    versions = ", ".join(f"{name} {described['versions'][name]}" for name in ("python", "jax", "tensorflow"))
    load = f"load {described['load_before']:.1f} before the first measurement"
    return f"{'; '.join(facts)}; {versions}; {commit_text(git) or 'no git checkout'}; {load}."


def rows_of(part: Mapping[str, Any]) -> list[Row]:
    """The rows of a part in the file."""
    return [from_json(one) for one in part["rows"]]


def gpu_block(results: Mapping[str, Any]) -> str:
    """The block of the page, markers included: what each kind of device has reached, and what is missing."""
    sections = [section for kind in sorted(results) for section in _gpu_sections(kind, results[kind])]
    return block("gpu", GPU_RESULTS, sections or ["No GPU has been measured yet."])


def _gpu_sections(kind: str, found: Mapping[str, Any]) -> Iterator[str]:
    device, parts = found["device"], found["parts"]
    rates = " and ".join(f"{rate / 1e12:,.1f} in {dtype}" for dtype, rate in device["measured_flops"].items())
    room = f"{device['memory_bytes'] / 2**30:.0f} GiB for arrays; " if device["memory_bytes"] else ""
    product = f"the largest product tried reaches {rates} (10^12 operations a second)."
    yield f"**{escape(kind)}**: {escape(room + product)}"
    lines = [line for part in parts.values() for one in rows_of(part) for line in cells(one)]
    yield table(HEADER, [[escape(cell) for cell in line] for line in lines], numbers_from=3)
    yield "\n".join(f"- {escape(line)}" for line in _gpu_notes(parts))


def _gpu_notes(parts: Mapping[str, Any]) -> Iterator[str]:
    """When, with what and how long each part was measured; what is missing of it; what its rows say besides."""
    for name, part in parts.items():
        versions = part["versions"]
        took = "" if part["seconds"] is None else f", took {duration(part['seconds'])}"
        missing = f": not whole, {part['missing']}" if part["missing"] else ""
        flags = f"XLA_FLAGS={part['xla_flags']}" if part["xla_flags"] else ""
        software = [f"jax {versions['jax']}", f"python {versions['python']}", flags]
        facts = [name, part["time"], commit_text(part["git"]), *software]
        yield f"{', '.join(filter(None, facts))}{took}{missing}"
        for one in rows_of(part):
            yield f"{one.what}: {'; '.join(filter(None, [one.facts.get('note'), one.fixed]))}"


def printed(part: Mapping[str, Any]) -> str:
    """A part for the terminal: its table, with the notes of its rows."""
    rows = rows_of(part)
    notes = [f"{one.what}: {one.facts['note']}" for one in rows if "note" in one.facts]
    missing = [f"not whole: {part['missing']}"] if part["missing"] else []
    return "\n".join([*([text(rows)] if rows else []), *notes, *missing])
