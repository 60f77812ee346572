"""The page of a sweep: the README's leaderboard and its pictures, made from leaderboard.json and from nothing else."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5xpg.base.curves import COMPARED, Curve, draw
from t5xpg.base.markdown import UNKNOWN, code, decimals, escape, table
from t5xpg.base.progress import duration
from t5xpg.run.best import MAX
from t5xpg.run.report import Board, Page
from t5xpg.study.board import batch_shape, facts, progress

STEPS_FILE, SECONDS_FILE = "steps.svg", "seconds.svg"
_LOSS = "nats_per_byte"  # what a board measures where its plan has no metric

Entry = Mapping[str, Any]


def sections(board: Board) -> Iterator[str]:
    """The paragraphs of the block."""
    yield progress(board, "runs", "what is missing is left out")
    ends = ", ".join(f"{entry['recipe']} {entry['mean_loss']:.3f}" for entry in ranked(board))
    caption = f"{_label(board)[0].upper()}{_label(board)[1:]}, after {_final_steps(board)}: {ends}"
    for file in pictures(board):
        yield f"![{escape(caption)}]({file})"
    undrawn = ranked(board)[len(COMPARED) :]
    if not _comparable(board):
        yield "The recipes are validated on different tasks: these losses do not compare, and no curve is drawn."
    elif undrawn:
        yield f"Not in the pictures: {', '.join(entry['recipe'] for entry in undrawn)}."
    yield from _judged(board)
    yield _leaderboard(board)
    for entry in board["final"]:
        if entry["seeds"] and entry["mean_loss"] is None:
            reason = f"{entry['loss'].count(None)} of {len(entry['seeds'])} seeds ended at a value that is not finite."
            yield f"{escape(entry['recipe'])} is left out: {reason}"
    yield _short_runs(board)
    yield _fit(board)
    if board["search"]:
        yield "What was tried, once each:"
        yield table(
            ["recipe", "settings", "steps", _name(board)], [_search_row(one) for one in board["search"]], numbers_from=2
        )
    yield facts(_facts(board), board["sources"])


def pictures(board: Board) -> dict[str, str]:
    """{file name: SVG}: the plan's metric over steps and, where the time of a step was measured, over seconds.

    For several seeds the mean is drawn, and a band from lowest to highest; of many recipes, those best at the end.
    Empty while no long run is done, and where the recipes are validated on different tasks.
    """
    entries = ranked(board)
    if not entries or not _comparable(board):
        return {}
    has_several_seeds = any(len(entry["seeds"]) > 1 for entry in entries)
    title = f"{board['experiment']}: {'mean and range of ' if has_several_seeds else ''}{_seeds(entries)}"
    label = _label(board)
    counts = sorted({round(entry["target_tokens_per_step"]) for entry in entries})
    tokens = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    steps = f"training step (optimiser updates; {tokens} target tokens each)"
    svgs = {STEPS_FILE: draw(title, steps, label, list(_curves(board, None)))}
    times = board["step_times"]
    if times is not None:
        svgs[SECONDS_FILE] = draw(title, "seconds of training", label, list(_curves(board, times["seconds"])))
    return svgs


PAGE = Page("leaderboard.json", "leaderboard", sections, pictures)


def ranked(board: Board) -> list[Entry]:
    """The recipes with a long run, the best first."""
    done = [entry for entry in board["final"] if entry["mean_loss"] is not None]
    return sorted(done, key=lambda entry: entry["mean_loss"], reverse=board.get("mode") == MAX)


def _label(board: Board) -> str:
    """The plan's metric as a phrase."""
    if board["measure"] == _LOSS:
        return f"validation loss{_task_phrase(board)}, nats per target byte"
    task, _, name = board["measure"].rpartition("/")
    return f"{name} on {task}" if task else f"{name}{_task_phrase(board)}"


def _curves(board: Board, seconds: Mapping[str, float] | None) -> Iterator[Curve]:
    for kind, entry in zip(COMPARED, ranked(board), strict=False):
        curves = list(entry["curves"].values())
        steps = [step for step in curves[0]["step"] if step > 0 and all(step in one["step"] for one in curves)]
        values = [[one[board["measure"]][one["step"].index(step)] for one in curves] for step in steps]
        means = [None if None in at else statistics.mean(at) for at in values]
        band = [None if None in at else (min(at), max(at)) for at in values] if len(curves) > 1 else []
        factor = 1.0 if seconds is None else seconds[entry["recipe"]]
        yield Curve(entry["recipe"], kind, [step * factor for step in steps], means, band)


def _name(board: Board) -> str:
    """The plan's metric in a word."""
    return "loss" if board["measure"] == _LOSS else escape(board["measure"].rpartition("/")[2])


def _validated_on(board: Board) -> list[str]:
    """The tasks of the validations; boards from before it was recorded have one task."""
    tasks = [entry.get("validated_on") for entry in board["final"] if entry["mean_loss"] is not None]
    return list(dict.fromkeys(task for task in tasks if task is not None))


def _comparable(board: Board) -> bool:
    """True if the validation losses of the recipes are of one task."""
    return len(_validated_on(board)) <= 1


def _task_phrase(board: Board) -> str:
    """The tasks that the recipes are validated on, as the end of a phrase; empty if they are not recorded."""
    tasks = _validated_on(board)
    return f" on {', '.join(tasks)}" if tasks else ""


def steps_text(board: Board, steps: int) -> str:
    """The number of steps that final runs were planned with, as text."""
    return f"{'at most ' if 'ended_early' in board else ''}{steps:,} steps"


def _final_steps(board: Board) -> str:
    return steps_text(board, board["reference"]["steps"])


def _seeds(entries: Sequence[Entry]) -> str:
    counts = sorted({len(entry["seeds"]) for entry in entries})
    return f"{' or '.join(map(str, counts))} {'seed' if counts == [1] else 'seeds'}"


def _leaderboard(board: Board) -> str:
    times = board["step_times"]
    rows = [
        [
            escape(entry["title"]),
            _settings(entry),
            str(len(entry["seeds"])),
            _loss(entry),
            *_costs_to_reference(board, entry),
            UNKNOWN if times is None else f"{1000 * times['seconds'][entry['recipe']]:,.0f} ms",
        ]
        for entry in ranked(board)
    ]
    measure = _name(board)
    header = ["recipe", "settings", "seeds", f"{measure} after {_final_steps(board)}", "steps to the reference"]
    return table([*header, "target tokens", "time", "a step"], rows, numbers_from=2) if rows else ""


def _settings(entry: Entry) -> str:
    file = entry["gin_file"]
    link = "" if file is None else f"[{escape(file.rpartition('/')[2])}](../../{file}), "
    return f"{link}`{entry['candidate']}`"


def _loss(entry: Entry) -> str:
    losses = entry["loss"]
    spread = f" ({min(losses):.3f} to {max(losses):.3f})" if len(losses) > 1 else ""
    return f"{entry['mean_loss']:.3f}{spread}"


def _costs_to_reference(board: Board, entry: Entry) -> tuple[str, str, str]:
    """Steps, target tokens and time to the reference's last loss: the mean over seeds."""
    steps, times = entry["steps_to_reference"], board["step_times"]
    if not steps or None in steps:
        return (UNKNOWN, UNKNOWN, UNKNOWN)
    mean = statistics.mean(steps)
    tokens = f"{mean * entry['target_tokens_per_step']:,.0f}"
    return f"{mean:,.0f}", tokens, UNKNOWN if times is None else duration(mean * times["seconds"][entry["recipe"]])


def _short_runs(board: Board) -> str:
    entry, reference = board["short"], board["reference"]
    if entry is None or entry["mean_loss"] is None:
        return ""
    text = f"{escape(entry['title'])}, with a schedule of {entry['steps']:,} steps, ends at {_loss(entry)} "
    text += f"({_seeds([entry])})"
    if reference["loss"] is not None:
        text += f"; the reference, {reference['recipe']}, at {reference['loss']:.3f} after {reference['steps']:,}"
    return text + "."


def _fit(board: Board) -> str:
    fit = board.get("fit")
    if fit is None or fit["law"] is None:
        return ""
    law, sizes, held_out = fit["law"], fit["num_params"], fit["held_out"]
    (measured,) = (entry["mean_loss"] for entry in board["final"] if entry["recipe"] == held_out)
    through = ", ".join(f"{name} ({sizes[name]:,})" for name in fit["recipes"])
    return (
        f"Through the sizes {through} goes the law {law['irreducible']:.3f} + {law['coefficient']:.4g} / "
        f"N^{law['exponent']:.3f} of N parameters. It predicts {fit['predicted']:.3f} for {held_out} "
        f"({sizes[held_out]:,}), which was held out and has {measured:.3f}: "
        f"{100 * abs(fit['predicted'] / measured - 1):.1f}% apart."
    )


def _search_row(trial: Mapping[str, Any]) -> list[str]:
    loss = decimals(trial["loss"])
    if trial["diverged_at"] is not None:
        loss = f"not finite after step {trial['diverged_at']:,}"
    settings, steps = f"`{trial['candidate']}`", f"{trial['steps']:,}"
    return [trial["recipe"], settings, steps, f"**{loss}**" if trial["chosen"] else loss]


def _judged(board: Board) -> Iterator[str]:
    """Yields the tables of losses on every judged task and of the recipes' training data, each below a sentence."""
    if board.get("judged") is None:
        return
    tasks, facts_by_recipe = board["judged"]["tasks"], board["judged"]["recipes"]
    recipes = [entry for entry in board["final"] if facts_by_recipe[entry["recipe"]]["seeds"]]
    if not recipes:
        return
    trained = [facts_by_recipe[entry["recipe"]] for entry in recipes]
    titles = [escape(entry["title"]) for entry in recipes]
    counts = sorted({len(recipe["seeds"]) for recipe in trained})
    seeds = "one seed" if counts == [1] else f"the mean of {' or '.join(map(str, counts))} seeds"
    yield (
        f"Loss after {_final_steps(board)} on the whole validation split of each task, in nats per target token, "
        f"{seeds}; the lowest is bold, and below a mixture stand its tasks:"
    )
    rows = [row for task in tasks for row in _loss_rows(task, [recipe["loss"][task] for recipe in trained])]
    yield table(["measured on", *titles], rows, numbers_from=1)
    yield "What they were trained on, as many steps each:"
    header = ["recipe", "task", "rows x lengths", "target tokens", "bytes of text"]
    yield table(header, [_training_row(*row) for row in zip(titles, trained, strict=True)], numbers_from=3)


def _loss_rows(task: str, losses: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """The row of a task, and those of its parts."""
    yield [code(task), *lowest_bold([one["mean"] for one in losses])]
    for part in dict.fromkeys(part for one in losses for part in one["parts"]):
        yield [f"&nbsp;&nbsp;{code(part)}", *lowest_bold([one["parts"].get(part) for one in losses])]


def lowest_bold(values: Sequence[float | None]) -> list[str]:
    """The values as cells, the lowest bold."""
    known = {value for value in values if value is not None}
    lowest = min(known) if len(known) > 1 else None
    return [f"**{decimals(value)}**" if value is not None and value == lowest else decimals(value) for value in values]


def _training_row(title: str, recipe: Mapping[str, Any]) -> list[str]:
    counts = (UNKNOWN if recipe[name] is None else f"{recipe[name]:,.0f}" for name in ("target_tokens", "text_bytes"))
    return [title, code(recipe["task"]), batch_shape(recipe, ", packed"), *counts]


def _facts(board: Board) -> Iterator[list[str]]:
    times, reference = board["step_times"], board["reference"]
    yield [_name(board), escape(f"{_label(board)}; mean and range over seeds")]
    meaning = f"to the reference, mean over seeds; {UNKNOWN} where not every seed comes to it"
    yield ["steps, tokens, time", meaning]
    if reference["loss"] is not None and _comparable(board):
        yield ["reference", f"{reference['recipe']}: {reference['loss']:.3f} after {_final_steps(board)}"]
    if times is not None:
        method = f"medians of {times['rounds']} turns of {times['steps']} updates, the recipes in alternation"
        yield ["time of a step", escape(f"{method}, on {times['host']['cores']} cores; time to the reference from it")]
