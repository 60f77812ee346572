"""The page of a speedrun: the tables of its README, made from speedrun.json and from nothing else."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from t5xpg.base.markdown import UNKNOWN, code, decimals, escape, table
from t5xpg.base.progress import duration
from t5xpg.run.report import Board, Page

Entry = Mapping[str, Any]
_HEADER = ["entry", "wall time", "target tokens", "steps", "seeds", "loss", "use of the encoder", "machine", "code"]


def sections(board: Board) -> Iterator[str]:
    """The paragraphs of the block."""
    accepted = [entry for entry in board["entries"] if not entry["objections"]]
    timed = [entry for entry in accepted if not entry["time_left_out"]]
    yield "" if accepted else "There is no entry yet."
    for title, name, entries in (("wall time", "seconds", timed), ("target tokens", "target_tokens", accepted)):
        if entries:
            yield f"By {title}, the mean over seeds:"
            yield table(_HEADER, [_row(one) for one in sorted(entries, key=lambda one: _mean(one, name))])
    for entry in board["entries"]:
        if reasons := "; ".join(entry["objections"]):
            yield f"{code(entry['name'])} does not count: {escape(reasons)}."
        elif entry["time_left_out"]:
            yield f"{code(entry['name'])} has no time: {entry['time_left_out']}."
    yield f"Not run yet: {', '.join(map(code, board['not_run']))}." if board["not_run"] else ""
    noise = "not measured yet, and no entry counts before it is"
    if board["noise"] is not None:
        noise = f"{board['noise']:.4f} nats; one standard deviation over seeds is {board['deviation']} (p < 0.01)"
    versions = ", ".join(f"{name} {version}" for name, version in board["toolchain"].items() if version)
    target = f"{board['target']} nats per target byte of the whole validation split, {board['seeds']} seeds or more"
    times = f"of {board['cores']} cores, {escape(versions)}"
    yield table(["", ""], [["target", target], ["noise to be cleared", noise], ["times", times]])


def _row(entry: Entry) -> list[str]:
    seeds, losses = entry["seeds"], [one["nats_per_byte"] for one in entry["seeds"]]
    name, loss = f"[{escape(entry['name'])}]({entry['file']})", f"{statistics.fmean(losses):.4f}"
    time = UNKNOWN if entry["time_left_out"] else duration(_mean(entry, "seconds"))
    cost = [time, f"{_mean(entry, 'target_tokens'):,.0f}", f"{seeds[0]['steps']:,}", str(len(seeds))]
    encoder_use = UNKNOWN if seeds[0]["encoder_use"] is None else decimals(_mean(entry, "encoder_use"))
    results = [f"{loss} ({min(losses):.4f} to {max(losses):.4f})", encoder_use]
    return [name, *cost, *results, escape(entry["cpu"] or UNKNOWN), escape(entry["commit"])]


def _mean(entry: Entry, name: str) -> float:
    return statistics.fmean(one[name] for one in entry["seeds"])


PAGE = Page("speedrun.json", "speedrun", sections)
