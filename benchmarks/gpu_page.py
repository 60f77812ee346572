"""What `make gpu` has found: for the terminal, and in docs/benchmarks.md, where each kind of device has a table.

benchmarks/results/gpu.json has the numbers; the page is made from it and from nothing else.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import Row
from benchmarks.page import HEADER, PAGE, block_in, cells, from_json, text
from t5xpg.base.files import json_text, write_texts
from t5xpg.base.markdown import escape, table
from t5xpg.base.progress import duration

RESULTS = PAGE.parents[1] / "benchmarks" / "results" / "gpu.json"
BEGIN, END = "<!-- gpu:begin -->", "<!-- gpu:end -->"
NOTE = "<!-- Written by `make gpu` from benchmarks/results/gpu.json. Do not edit. -->"
NOTHING = "No GPU has been measured yet."


def publish(results: Mapping[str, Any], file: Path, page: Path) -> None:
    """Write the results and the block of the page. Raises UserError where the page has no markers for it."""
    written = page.read_text(encoding="utf-8")
    old = block_in(written, BEGIN, END, page)
    write_texts({file: json_text(results), page: written.replace(old, block(results))})


def rows_of(part: Mapping[str, Any]) -> list[Row]:
    """The rows of a part in the file."""
    return [from_json(one) for one in part["rows"]]


def block(results: Mapping[str, Any]) -> str:
    """The block of the page, markers included: what each kind of device has reached, and what is missing."""
    sections = [section for kind in sorted(results) for section in _device(kind, results[kind])]
    return "\n\n".join([BEGIN, NOTE, *(sections or [NOTHING]), END])


def _device(kind: str, found: Mapping[str, Any]) -> Iterator[str]:
    rows = [one for part in found["parts"].values() for one in rows_of(part)]
    yield f"**{escape(kind)}**: {escape(_device_text(found['device']))}"
    yield table(HEADER, [[escape(cell) for cell in line] for one in rows for line in cells(one)], numbers_from=3)
    yield "\n".join(f"- {escape(line)}" for line in _notes(found["parts"]))


def _device_text(device: Mapping[str, Any]) -> str:
    rates = [f"{rate / 1e12:,.1f} in {dtype}" for dtype, rate in device["measured_flops"].items()]
    memory = device["memory_bytes"]
    room = f"{memory / 2**30:.0f} GiB for arrays; " if memory else ""
    return f"{room}the largest product tried reaches {' and '.join(rates)} (10^12 operations a second)."


def _notes(parts: Mapping[str, Any]) -> Iterator[str]:
    """When, with what and how long each part was measured; what is missing of it; what its rows say besides."""
    for name, part in parts.items():
        git, versions = part["git"], part["versions"]
        commit = "" if git is None else f"commit {git['commit'][:12]}{'' if git['clean'] else ' with changes'}, "
        took = "" if part["seconds"] is None else f", took {duration(part['seconds'])}"
        missing = f": not whole, {part['missing']}" if part["missing"] else ""
        flags = f", XLA_FLAGS={part['xla_flags']}" if part["xla_flags"] else ""
        software = f"jax {versions['jax']}, python {versions['python']}{flags}"
        yield f"{name}, {part['time']}, {commit}{software}{took}{missing}"
        for one in rows_of(part):
            said = "; ".join(filter(None, [one.facts.get("note"), one.fixed]))
            yield f"{one.what}: {said}"


def printed(part: Mapping[str, Any]) -> str:
    """A part for the terminal: its table, with the notes of its rows."""
    rows = rows_of(part)
    notes = [f"{one.what}: {one.facts['note']}" for one in rows if "note" in one.facts]
    missing = [f"not whole: {part['missing']}"] if part["missing"] else []
    return "\n".join([*([text(rows)] if rows else []), *notes, *missing])
