"""The measurements as a table: for the terminal, and in Markdown for the README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness import Row, number

HEADER = ("what", "contestant", "median", "spread", "ours is", "goal")
MISSING = "-"


def cells(row: Row) -> Iterator[list[str]]:
    """Lines of the table for one row: a line a contestant, ours first."""
    for index, name in enumerate(row.contestants):
        first = index == 0
        what, goal = (f"{row.what} [{row.unit}]", goal_text(row)) if first else ("", "")
        median = row.median(name)
        if median is None:
            yield [what, name, row.found.missing.get(name, MISSING), "", "", goal]
            continue
        spread, ratio = row.spread(name), None if first else row.ratio(name)
        yield [
            what,
            name,
            number(median),
            MISSING if spread is None else f"{100 * spread:.0f}%",
            "" if first else MISSING if ratio is None else f"{ratio:.2f} x",
            goal,
        ]


def goal_text(row: Row) -> str:
    """What is wanted, and whether it is reached."""
    if row.goal is None:
        return ""
    limit, word = (
        (row.goal.at_most, "at most") if row.goal.at_most is not None else (row.goal.at_least, "at least")
    )  # fmt: skip
    unit = row.unit if row.goal.against is None else f"x {row.goal.against}"
    verdict = {True: "reached", False: "missed", None: "not known"}[row.reached()]
    return f"{word} {number(limit or 0.0)} {unit}: {verdict}"


def text(rows: Sequence[Row]) -> str:
    """For a terminal: columns, what is fixed under each row, and the command that gives it again."""
    table = [(row, list(cells(row))) for row in rows]
    every = [list(HEADER), *(line for _, lines in table for line in lines if _fits(line))]
    widths = [max(len(line[column]) for line in every) for column in range(len(HEADER))]
    lines = [_columns(list(HEADER), widths), "-" * (sum(widths) + 2 * (len(widths) - 1))]
    for row, found in table:
        lines += [_columns(line, widths) for line in found]
        lines += [f"    {row.fixed}", f"    {command(row)}", ""]
    return "\n".join(lines).rstrip("\n")


def command(row: Row) -> str:
    """What gives the row again."""
    return f"make bench ROWS={row.name}"


def markdown(rows: Sequence[Row], described: Mapping[str, Any]) -> str:
    """The table for a README, with the machine before it and what is fixed behind it."""
    header = ["| " + " | ".join(HEADER) + " |", "|---|---|---:|---:|---:|---|"]
    lines = [f"| {' | '.join(_escaped(cell) for cell in line)} |" for row in rows for line in cells(row)]
    notes = [f"- **{_escaped(row.what)}** (`{command(row)}`): {_escaped(row.fixed)}." for row in rows]
    return "\n\n".join([_escaped(machine_text(described)), "\n".join([*header, *lines]), "\n".join(notes)])


def machine_text(described: Mapping[str, Any]) -> str:
    """One sentence on where and when the measurements were made."""
    machine, peak, git = described["machine"], described["peak_flops"], described["git"]
    facts = [f"{machine['cpu'] or 'unknown processor'}", f"{machine['cores']} cores", machine["platform"]]
    if machine["memory_bytes"]:
        facts.insert(2, f"{machine['memory_bytes'] / 2**30:.0f} GiB")
    peaks = [f"{peak[dtype] / 1e9:,.0f} GFLOP/s in {dtype}" for dtype in ("float32", "bfloat16") if dtype in peak]
    if peaks:
        facts.append(f"matrix products at {' and '.join(peaks)}")
    versions = ", ".join(f"{name} {described['versions'][name]}" for name in ("python", "jax", "tensorflow"))
    source = (
        "no git checkout" if git is None else f"commit {git['commit'][:12]}{'' if git['clean'] else ' with changes'}"
    )
    load = f"load {described['load_before']:.1f} before the first measurement"
    return f"{described['time']}; {'; '.join(facts)}; {versions}; {source}; {load}."


def _columns(line: Sequence[str], widths: Sequence[int]) -> str:
    shown = [
        cell.rjust(width) if column in (2, 3, 4) and _fits(line) else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(shown).rstrip()


def _fits(line: Sequence[str]) -> bool:
    """Whether the third cell is a number: a reason why there is none may stand out over the columns behind it."""
    return not line[2][:1].isalpha()


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "&lt;")
