"""What the page of a sweep says of recipes that are trained on different tasks; from leaderboard.json alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5xpg.base.page import UNKNOWN, code, decimals, escape, table

Board = Mapping[str, Any]


def comparable(board: Board) -> bool:
    """Whether the validation losses of the recipes are of one task."""
    return len(_validated_on(board)) <= 1


def on_task(board: Board) -> str:
    """Which task the recipes are validated on, as the end of a phrase; plain text. Empty where it is not recorded."""
    tasks = _validated_on(board)
    return f" on {', '.join(tasks)}" if tasks else ""


def _validated_on(board: Board) -> list[str]:
    """Boards from before it was recorded have one task."""
    found = [entry.get("validated_on") for entry in board["final"] if entry["mean_loss"] is not None]
    return list(dict.fromkeys(task for task in found if task is not None))


def sections(board: Board) -> Iterator[str]:
    """The tables of losses on every task and of what the recipes were trained on, each below a sentence."""
    found = board.get("judged")
    if found is None:
        return
    recipes = [entry for entry in board["final"] if found["recipes"][entry["recipe"]]["seeds"]]
    if not recipes:
        return
    names, titles = [entry["recipe"] for entry in recipes], [escape(entry["title"]) for entry in recipes]
    losses = [found["recipes"][name]["loss"] for name in names]
    rows = [row for task in found["tasks"] for row in _rows(task, losses)]
    yield (
        f"Loss after {board['reference']['steps']:,} steps on the whole validation split of each task, in nats per "
        f"target token, {_seeds(found, names)}; the lowest is bold, and below a mixture stand its tasks:"
    )
    yield table(["measured on", *titles], rows, numbers_from=1)
    yield "What they were trained on, as many steps each:"
    header = ["recipe", "task", "rows x lengths", "target tokens", "bytes of text"]
    yield table(
        header,
        [_trained_on(found["recipes"][name], title) for name, title in zip(names, titles, strict=True)],
        numbers_from=3,
    )


def _rows(task: str, losses: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """The row of a task, and those of its parts."""
    yield [code(task), *_marked([one[task]["mean"] for one in losses])]
    for part in dict.fromkeys(part for one in losses for part in one[task]["parts"]):
        yield [f"&nbsp;&nbsp;{code(part)}", *_marked([one[task]["parts"].get(part) for one in losses])]


def _marked(values: Sequence[float | None]) -> list[str]:
    """The values as cells, the lowest bold."""
    known = [value for value in values if value is not None]
    lowest = min(known) if len(known) > 1 and len(set(known)) > 1 else None
    return [f"**{decimals(value)}**" if value is not None and value == lowest else decimals(value) for value in values]


def _seeds(found: Mapping[str, Any], names: Sequence[str]) -> str:
    counts = sorted({len(found["recipes"][name]["seeds"]) for name in names})
    return "one seed" if counts == [1] else f"the mean of {' or '.join(map(str, counts))} seeds"


def _trained_on(recipe: Mapping[str, Any], title: str) -> list[str]:
    lengths = "/".join(str(length) for length in recipe["lengths"].values())
    packed = ", packed" if recipe["packed"] else ""
    return [
        title,
        code(recipe["task"]),
        f"{recipe['rows']} x {lengths}{packed}",
        *(UNKNOWN if recipe[name] is None else f"{recipe[name]:,.0f}" for name in ("target_tokens", "text_bytes")),
    ]
