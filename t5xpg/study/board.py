"""Common parts of the boards and the pages of all studies."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5xpg.base.markdown import escape, table
from t5xpg.run.report import Board

FORMAT = 1


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A measure, rounded as boards keep it."""
    return None if value is None else round(value, digits)


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if one of the values is missing, or if there are no values."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known and len(known) == len(values) else None


def progress(board: Board, runs: str, missing: str) -> str:
    """A sentence on the number of runs that are done; empty if all are. runs: their noun. missing: its end."""
    if board["runs_done"] == board["runs"]:
        return ""
    return f"{board['runs_done']} of {board['runs']} {runs} are done; {missing}."


def batch_shape(settings: Mapping[str, Any], packed_suffix: str) -> str:
    """The rows and lengths of training batches. packed_suffix: is added if rows hold several examples."""
    lengths = "/".join(str(length) for length in settings["lengths"].values())
    return f"{settings['rows']} x {lengths}{packed_suffix if settings['packed'] else ''}"


def facts(rows: Iterable[Sequence[str]], sources: Mapping[str, list[Any]]) -> str:
    """The table at the end of a block: the given rows, and where the runs come from, as `runs.sources` gives it."""
    cores = " or ".join(map(str, sources["cores"])) + (" core" if sources["cores"] == [1] else " cores")
    texts = [", ".join(f"{name} {number}" for name, number in one.items() if number) for one in sources["versions"]]
    source_rows = [
        ["source", escape(", ".join(f"commit {commit}" for commit in sources["commit"])) or "no git checkout"],
        ["hardware", escape(f"{', '.join(sources['cpu'])}; {cores} each")],
        *(["versions", escape(text)] for text in texts),
    ]
    return table(["", ""], [*rows, *source_rows])
