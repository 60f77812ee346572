"""What `make gpu` has found: for the terminal, and in docs/benchmarks.md, where each kind of device has a table.

benchmarks/results/gpu.json has the numbers; the page is made from it and from nothing else.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import page
from benchmarks.harness import Row
from t5xpg.base.markdown import escape, table
from t5xpg.base.progress import duration

RESULTS = page.RESULTS.with_name("gpu.json")


def rows_of(part: Mapping[str, Any]) -> list[Row]:
    """The rows of a part in the file."""
    return [page.from_json(one) for one in part["rows"]]


def block(results: Mapping[str, Any]) -> str:
    """The block of the page, markers included: what each kind of device has reached, and what is missing."""
    sections = [section for kind in sorted(results) for section in _device(kind, results[kind])]
    return page.block("gpu", RESULTS, sections or ["No GPU has been measured yet."])


def _device(kind: str, found: Mapping[str, Any]) -> Iterator[str]:
    device, parts = found["device"], found["parts"]
    rates = " and ".join(f"{rate / 1e12:,.1f} in {dtype}" for dtype, rate in device["measured_flops"].items())
    room = f"{device['memory_bytes'] / 2**30:.0f} GiB for arrays; " if device["memory_bytes"] else ""
    product = f"the largest product tried reaches {rates} (10^12 operations a second)."
    yield f"**{escape(kind)}**: {escape(room + product)}"
    lines = [line for part in parts.values() for one in rows_of(part) for line in page.cells(one)]
    yield table(page.HEADER, [[escape(cell) for cell in line] for line in lines], numbers_from=3)
    yield "\n".join(f"- {escape(line)}" for line in _notes(parts))


def _notes(parts: Mapping[str, Any]) -> Iterator[str]:
    """When, with what and how long each part was measured; what is missing of it; what its rows say besides."""
    for name, part in parts.items():
        versions = part["versions"]
        took = "" if part["seconds"] is None else f", took {duration(part['seconds'])}"
        missing = f": not whole, {part['missing']}" if part["missing"] else ""
        flags = f"XLA_FLAGS={part['xla_flags']}" if part["xla_flags"] else ""
        software = [f"jax {versions['jax']}", f"python {versions['python']}", flags]
        facts = [name, part["time"], page.commit_text(part["git"]), *software]
        yield f"{', '.join(filter(None, facts))}{took}{missing}"
        for one in rows_of(part):
            yield f"{one.what}: {'; '.join(filter(None, [one.facts.get('note'), one.fixed]))}"


def printed(part: Mapping[str, Any]) -> str:
    """A part for the terminal: its table, with the notes of its rows."""
    rows = rows_of(part)
    notes = [f"{one.what}: {one.facts['note']}" for one in rows if "note" in one.facts]
    missing = [f"not whole: {part['missing']}"] if part["missing"] else []
    return "\n".join([*([page.text(rows)] if rows else []), *notes, *missing])
