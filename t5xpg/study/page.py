"""The page of a sweep: the README's leaderboard and its pictures, made from leaderboard.json and from nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5xpg.base.curves import COMPARED, Curve, draw
from t5xpg.base.page import escape, table
from t5xpg.base.progress import duration
from t5xpg.study import judged_page
from t5xpg.study.board import MEASURE
from t5xpg.study.judged_sources import commits, hardware, libraries

BEGIN, END = "<!-- leaderboard:begin -->", "<!-- leaderboard:end -->"
STEPS_FILE, SECONDS_FILE = "steps.svg", "seconds.svg"
_UNKNOWN = "-"

Board = Mapping[str, Any]
Entry = Mapping[str, Any]


def block(board: Board) -> str:
    """The block between its markers, markers included, without a line end after the last."""
    sections = [
        BEGIN,
        "<!-- Written by `make report` from leaderboard.json. Do not edit. -->",
        _progress(board),
        *(f"![{escape(_caption(board))}]({file})" for file in pictures(board)),
        _not_drawn(board),
        *judged_page.sections(board),
        _leaderboard(board),
        _short(board),
        "What was tried, once each:" if board["search"] else "",
        _search(board),
        _facts(board),
        END,
    ]
    return "\n\n".join(section for section in sections if section)


def pictures(board: Board) -> dict[str, str]:
    """{file name: SVG}: the validation loss over steps and, where the time of a step was measured, over seconds.

    Of several seeds the mean is drawn; of many recipes, those with the lowest losses at the end. Empty while no long
    run is done, and where the recipes are validated on different tasks.
    """
    entries = _ranked(board)
    if not entries or not judged_page.comparable(board):
        return {}
    title = f"{board['experiment']}: mean of {_seeds(entries)}"
    label = f"validation loss{judged_page.on_task(board)}, nats per target byte"
    counts = sorted({round(entry["target_tokens_per_step"]) for entry in entries})
    tokens = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    steps = f"training step (optimiser updates; {tokens} target tokens each)"
    drawn = {STEPS_FILE: draw(title, steps, label, list(_curves(entries, None)))}
    times = board["step_times"]
    if times is not None:
        drawn[SECONDS_FILE] = draw(title, "seconds of training", label, list(_curves(entries, times["seconds"])))
    return drawn


def _ranked(board: Board) -> list[Entry]:
    """The recipes with a long run, the lowest loss first."""
    done = [entry for entry in board["final"] if entry["mean_loss"] is not None]
    return sorted(done, key=lambda entry: entry["mean_loss"])


def _curves(entries: Sequence[Entry], seconds: Mapping[str, float] | None) -> Iterator[Curve]:
    for kind, entry in zip(COMPARED, entries, strict=False):
        curves = list(entry["curves"].values())
        steps = [step for step in curves[0]["step"] if step > 0 and all(step in one["step"] for one in curves)]
        values = [[one[MEASURE][one["step"].index(step)] for one in curves] for step in steps]
        means = [None if None in at else statistics.mean(at) for at in values]
        factor = 1.0 if seconds is None else seconds[entry["recipe"]]
        yield Curve(entry["recipe"], kind, [step * factor for step in steps], means)


def _progress(board: Board) -> str:
    if board["runs_done"] == board["runs"]:
        return ""
    return f"{board['runs_done']} of {board['runs']} runs are done; what is missing is left out."


def _not_drawn(board: Board) -> str:
    if not judged_page.comparable(board):
        return "The recipes are validated on different tasks: these losses do not compare, and no curve is drawn."
    left = _ranked(board)[len(COMPARED) :]
    return f"Not in the pictures: {', '.join(entry['recipe'] for entry in left)}." if left else ""


def _caption(board: Board) -> str:
    ends = [f"{entry['recipe']} {entry['mean_loss']:.3f}" for entry in _ranked(board)]
    where, steps = judged_page.on_task(board), board["reference"]["steps"]
    return f"Validation loss{where} in nats per target byte after {steps:,} steps: {', '.join(ends)}"


def _leaderboard(board: Board) -> str:
    rows = []
    for entry in _ranked(board):
        rows.append(
            [
                escape(entry["title"]),
                _settings(entry),
                str(len(entry["seeds"])),
                _loss(entry),
                *_reached(board, entry),
                _milliseconds(board, entry["recipe"]),
            ]
        )
    reference = board["reference"]
    header = ["recipe", "settings", "seeds", f"loss after {reference['steps']:,} steps", "steps to the reference"]
    return table([*header, "target tokens", "time", "a step"], rows, numbers_from=2) if rows else ""


def _short(board: Board) -> str:
    entry = board["short"]
    if entry is None or entry["mean_loss"] is None:
        return ""
    reference = board["reference"]
    text = f"{escape(entry['title'])}, with a schedule of {entry['steps']:,} steps, ends at {_loss(entry)} "
    text += f"({_seeds([entry])})"
    if reference["loss"] is not None:
        text += f"; the reference, {reference['recipe']}, at {reference['loss']:.3f} after {reference['steps']:,}"
    return text + "."


def _search(board: Board) -> str:
    rows = []
    for tried in board["search"]:
        loss = f"not finite after step {tried['diverged_at']:,}" if tried["diverged_at"] is not None else _UNKNOWN
        loss = loss if tried["loss"] is None else f"{tried['loss']:.3f}"
        name, settings = tried["recipe"], f"`{tried['candidate']}`"
        rows.append([name, settings, f"{tried['steps']:,}", f"**{loss}**" if tried["chosen"] else loss])
    return table(["recipe", "settings", "steps", "loss"], rows, numbers_from=2) if rows else ""


def _facts(board: Board) -> str:
    sources, times = board["sources"], board["step_times"]
    where = judged_page.on_task(board)
    rows = [["loss", escape(f"validation{where}, nats per target byte; mean and range over seeds")]]
    reached = f"to the reference, mean over seeds; {_UNKNOWN} where not every seed comes to it"
    rows.append(["steps, tokens, time", reached])
    if board["reference"]["loss"] is not None and judged_page.comparable(board):
        reference = board["reference"]
        rows.append(["reference", f"{reference['recipe']}: {reference['loss']:.3f} after {reference['steps']:,} steps"])
    rows.append(["source", commits(sources)])
    rows.append(["hardware of the runs", hardware(sources)])
    if times is not None:
        how = f"medians of {times['rounds']} turns of {times['steps']} updates, the recipes in alternation"
        rows.append(
            ["time of a step", escape(f"{how}, on {times['host']['cores']} cores; time to the reference from it")]
        )
    rows += [["versions", versions] for versions in libraries(sources)]
    return table(["", ""], rows)


def _settings(entry: Entry) -> str:
    if entry["gin_file"] is None:
        return f"`{entry['candidate']}`"
    return f"[{escape(entry['gin_file'].rpartition('/')[2])}](../../{entry['gin_file']}), `{entry['candidate']}`"


def _loss(entry: Entry) -> str:
    losses = entry["loss"]
    spread = f" ({min(losses):.3f} to {max(losses):.3f})" if len(losses) > 1 else ""
    return f"{entry['mean_loss']:.3f}{spread}"


def _reached(board: Board, entry: Entry) -> tuple[str, str, str]:
    """Steps, target tokens and time to the reference's last loss: the mean over seeds."""
    steps = entry["steps_to_reference"]
    if not steps or None in steps:
        return (_UNKNOWN, _UNKNOWN, _UNKNOWN)
    mean = statistics.mean(steps)
    tokens = f"{mean * entry['target_tokens_per_step']:,.0f}"
    times = board["step_times"]
    return f"{mean:,.0f}", tokens, _UNKNOWN if times is None else duration(mean * times["seconds"][entry["recipe"]])


def _milliseconds(board: Board, recipe: str) -> str:
    times = board["step_times"]
    return _UNKNOWN if times is None else f"{1000 * times['seconds'][recipe]:,.0f} ms"


def _seeds(entries: Sequence[Entry]) -> str:
    counts = sorted({len(entry["seeds"]) for entry in entries})
    text = " or ".join(map(str, counts))
    return f"{text} {'seed' if counts == [1] else 'seeds'}"
