"""The page of a sweep: the README's leaderboard and its pictures, made from leaderboard.json and from nothing else."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5xpg.base.curves import COMPARED, Curve, draw
from t5xpg.base.markdown import code, escape
from t5xpg.base.pages import count, render, seeds_text
from t5xpg.run.best import MAX
from t5xpg.run.report import Board, Page

STEPS_FILE, SECONDS_FILE = "steps.svg", "seconds.svg"
_LOSS = "nats_per_byte"  # what a board measures where its plan has no metric

Entry = Mapping[str, Any]


def text(board: Board) -> str:
    """The block."""
    entries, label, steps = ranked(board), _label(board), steps_text(board, board["reference"]["steps"])
    ends = ", ".join(f"{entry['recipe']} {entry['mean_loss']:.3f}" for entry in entries)
    judged = board.get("judged") or {"tasks": (), "recipes": {}}
    trained = [
        {"title": entry["title"], "facts": facts}
        for entry in board["final"]
        if (facts := judged["recipes"].get(entry["recipe"])) and facts["seeds"]
    ]
    return render(
        "leaderboard.md.j2",
        board=board,
        caption=f"{label[0].upper()}{label[1:]}, after {steps}: {ends}",
        comparable=_comparable(board),
        label=label,
        loss_rows=[
            row for task in judged["tasks"] for row in _loss_rows(task, [one["facts"]["loss"][task] for one in trained])
        ],
        measure="loss" if board["measure"] == _LOSS else escape(board["measure"].rpartition("/")[2]),
        pictures=list(pictures(board)),
        ranked=entries,
        steps=steps,
        trained=trained,
        undrawn=entries[len(COMPARED) :],
    )


def pictures(board: Board) -> dict[str, str]:
    """{file name: SVG}: the plan's metric over steps and, where the time of a step was measured, over seconds.

    For several seeds the mean is drawn, and a band from lowest to highest; of many recipes, those best at the end.
    Empty while no long run is done, and where the recipes are validated on different tasks.
    """
    entries = ranked(board)
    if not entries or not _comparable(board):
        return {}
    has_several_seeds = any(len(entry["seeds"]) > 1 for entry in entries)
    title = f"{board['experiment']}: {'mean and range of ' if has_several_seeds else ''}{seeds_text(entries)}"
    label = _label(board)
    tokens = sorted({round(entry["target_tokens_per_step"]) for entry in entries})
    tokens_text = " to ".join(map(count, dict.fromkeys((tokens[0], tokens[-1]))))
    steps = f"training step (optimiser updates; {tokens_text} target tokens each)"
    svgs = {STEPS_FILE: draw(title, steps, label, list(_curves(board, None)))}
    times = board["step_times"]
    if times is not None:
        svgs[SECONDS_FILE] = draw(title, "seconds of training", label, list(_curves(board, times["seconds"])))
    return svgs


PAGE = Page("leaderboard.json", "leaderboard", text, pictures)


def ranked(board: Board) -> list[Entry]:
    """The recipes with a long run, the best first."""
    done = [entry for entry in board["final"] if entry["mean_loss"] is not None]
    return sorted(done, key=lambda entry: entry["mean_loss"], reverse=board.get("mode") == MAX)


def _label(board: Board) -> str:
    """The plan's metric as a phrase."""
    task, _, name = board["measure"].rpartition("/")
    tasks = task or ", ".join(_validated_on(board))
    on_tasks = f" on {tasks}" if tasks else ""
    return f"validation loss{on_tasks}, nats per target byte" if name == _LOSS and not task else f"{name}{on_tasks}"


def _curves(board: Board, seconds: Mapping[str, float] | None) -> Iterator[Curve]:
    for kind, entry in zip(COMPARED, ranked(board), strict=False):
        steps, means, band = over_seeds(entry, board["measure"])
        first = sum(step <= 0 for step in steps)
        factor = 1.0 if seconds is None else seconds[entry["recipe"]]
        shown_band = band[first:] if len(entry["curves"]) > 1 else []
        yield Curve(entry["recipe"], kind, [step * factor for step in steps[first:]], means[first:], shown_band)


def over_seeds(entry: Entry, measure: str) -> tuple[list[int], list[float | None], list[tuple[float, float] | None]]:
    """(steps, means, lowest and highest values) of a recipe's seeds at the steps that they have in common."""
    columns = [dict(zip(seed["step"], seed[measure], strict=True)) for seed in entry["curves"].values()]
    steps = [step for step in columns[0] if all(step in column for column in columns)]
    rows = [[column[step] for column in columns] for step in steps]
    means = [None if None in row else statistics.mean(row) for row in rows]
    return steps, means, [None if None in row else (min(row), max(row)) for row in rows]


def _validated_on(board: Board) -> list[str]:
    """The tasks of the validations; boards from before it was recorded have one task."""
    tasks = [entry.get("validated_on") for entry in board["final"] if entry["mean_loss"] is not None]
    return list(dict.fromkeys(task for task in tasks if task is not None))


def _comparable(board: Board) -> bool:
    """True if the validation losses of the recipes are of one task."""
    return len(_validated_on(board)) <= 1


def steps_text(board: Board, steps: int) -> str:
    """The number of steps that final runs were planned with, as text."""
    return f"{'at most ' if 'ended_early' in board else ''}{steps:,} steps"


def _loss_rows(task: str, losses: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[float | None]]]:
    """The row of a task, and those of its parts."""
    yield code(task), [one["mean"] for one in losses]
    for part in dict.fromkeys(part for one in losses for part in one["parts"]):
        yield f"&nbsp;&nbsp;{code(part)}", [one["parts"].get(part) for one in losses]
