"""`make sweep EXP=…`: trains what sweep.toml in the experiment's folder says, run by run, and goes on where it stopped.

The plan is in `plan`, the runs in `runs`, what they are measured on besides in `judging`, what they found in
`leaderboard`, the page that shows it in `page`.
"""

from __future__ import annotations

from pathlib import Path

from t5xpg.base import locks
from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, replaced_together, write_json, write_text
from t5xpg.base.page import block_of, with_block
from t5xpg.base.paths import shown
from t5xpg.experiment import config
from t5xpg.study import board as leaderboard
from t5xpg.study import judging, page, plan, runs
from t5xpg.study.plan import Plan

LEADERBOARD_FILE, TIMES_FILE, README_FILE = "leaderboard.json", "step_times.json", "README.md"


def is_sweep(experiment: str) -> bool:
    """Whether an experiment is one of several runs."""
    return (config.find_experiment(experiment)[1].parent / plan.FILE_NAME).exists()


def sweep(experiment: str, folder: Path, *, jobs: int = 1) -> int:
    """Train what is left of a sweep, each run in a folder of its own in `folder`, and print what is known so far.

    jobs: runs at a time; they share the cores. Their losses do not depend on it but for the order of sums, which the
    number of cores decides. Returns 0 when every run is done. Raises UserError for what the user can mend: a mistake
    in the plan, a run with other settings than the plan has now.
    """
    name, file = config.find_experiment(experiment)
    what = plan.read(file.parent / plan.FILE_NAME)
    with locks.hold(folder / ".lock", doing=f"working in {folder}", instead="Wait for it, or name another with RUN=…"):
        search = what.search()
        first = what.final({recipe.name: recipe.candidates[0] for recipe in what.recipes})
        for run in search or first:
            runs.check(experiment, run, folder)
        if what.judged:
            judging.require_tasks(experiment, first, what.judged, folder)
        runs.train(experiment, search, folder, jobs=jobs, label="search")
        best = leaderboard.best_candidates(what, folder)
        assert best is not None
        final = what.final(best)
        for run in final:
            runs.check(experiment, run, folder)
        runs.train(experiment, final, folder, jobs=jobs, label="sweep")
        if what.judged:
            judging.measure(experiment, [run for run in final if run.stage == "final"], what.judged, folder)
        for line in _summary(leaderboard.collect(name, what, folder, _times(folder))):
            print(line)
    print(f"publish it: make report EXP={name}")
    return 0


def time_steps(experiment: str, folder: Path) -> int:
    """Measure what a step of each recipe takes and keep it in `folder` for the leaderboard. Returns 0."""
    from t5xpg.study import step_times

    what, best = _chosen(experiment, folder)
    measured = step_times.measure(experiment, what, best)
    write_json(folder / TIMES_FILE, measured)
    for recipe, seconds in measured["seconds"].items():
        print(f"{recipe}: {1000 * seconds:,.0f} ms a step (fastest {1000 * measured['fastest'][recipe]:,.0f})")
    return 0


def publish(experiment: str, folder: Path) -> Path:
    """Write leaderboard.json, the pictures and the README's block into the experiment's folder; the README's path.

    What is not done yet is left out, and the page says so. Raises UserError where nothing is done.
    """
    name, file = config.find_experiment(experiment)
    what = plan.read(file.parent / plan.FILE_NAME)
    board = leaderboard.collect(name, what, folder, _times(folder))
    if not board["runs_done"]:
        raise UserError(f"No run of {name} is done in {shown(folder)}. Train first: make sweep EXP={name}")
    readme = file.parent / README_FILE
    text = readme.read_text(encoding="utf-8") if readme.exists() else f"# {name}\n"
    pictures = page.pictures(board)
    written = [file.parent / one for one in (LEADERBOARD_FILE, *pictures)]
    with replaced_together(readme, *written):
        write_text(readme, with_block(text, page.block(board), page.BEGIN, page.END, readme))
        write_json(file.parent / LEADERBOARD_FILE, board)
        for picture, svg in pictures.items():
            write_text(file.parent / picture, svg)
    for path in (readme, *written):
        print(f"report: {shown(path)}", flush=True)
    return readme


def check_page(folder: Path) -> list[str]:
    """What differs between an experiment's leaderboard.json and what is made from it; empty where all is in order."""
    board = read_json(folder / LEADERBOARD_FILE)
    readme = folder / README_FILE
    differences = []
    if block_of(readme.read_text(encoding="utf-8"), page.BEGIN, page.END, readme) != page.block(board):
        differences.append(f"{readme}: the block is not that of {LEADERBOARD_FILE}")
    for name, svg in page.pictures(board).items():
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != svg:
            differences.append(f"{folder / name} is not the picture of {LEADERBOARD_FILE}")
    return differences


def _chosen(experiment: str, folder: Path) -> tuple[Plan, dict[str, str]]:
    what = plan.read(config.find_experiment(experiment)[1].parent / plan.FILE_NAME)
    best = leaderboard.best_candidates(what, folder)
    if best is None:
        raise UserError(f"The search is not done in {shown(folder)}. Train first: make sweep EXP={experiment}")
    return what, best


def _times(folder: Path) -> dict[str, object] | None:
    file = folder / TIMES_FILE
    return read_json(file) if file.exists() else None


def _summary(board: leaderboard.Leaderboard) -> list[str]:
    lines = []
    for entry in board["final"]:
        losses = ", ".join(f"{loss:.3f}" for loss in entry["loss"])
        lines.append(f"{entry['recipe']} ({entry['candidate']}): {losses} after {entry['steps']:,} steps")
    return lines
