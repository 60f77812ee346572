"""`make sweep EXP=…` of a matrix: trains every cell of matrix.toml in the experiment's folder, run by run.

The plan is in `plan` and read in `reading`; `making` makes what is missing, `cells` are the runs, `comparison` is what
they have to beat, `board` what was found, `page` the tables, `checks` what `make check` says.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from t5xpg.base import locks, paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, replaced_together, write_text
from t5xpg.base.page import block_of, with_block
from t5xpg.base.paths import shown
from t5xpg.experiment import config
from t5xpg.run.results import write_results
from t5xpg.study import runs
from t5xpg.study.matrix import board, cells, checks, comparison, making, page, plan, reading
from t5xpg.study.matrix.plan import Plan

BOARD_FILE, README_FILE = "matrix.json", "README.md"


def is_matrix(experiment: str) -> bool:
    """Whether an experiment is a matrix."""
    return (config.find_experiment(experiment)[1].parent / plan.FILE_NAME).exists()


def train(experiment: str, folder: Path, *, jobs: int = 1, only: str = "*") -> int:
    """Train what is left of a matrix, each cell in a folder of its own in `folder`, and measure what it has to beat.

    Exports, vocabularies and caches are made where they are missing. jobs: runs at a time; they share the cores.
    only: a pattern of the names of cells, such as "*,lm,*". Returns 0 when every cell is done. Raises UserError for
    what the user can mend: a mistake in the plan, a pattern of no cell, a run with other settings than the plan.
    """
    name, what = _plan(experiment)
    if not any(fnmatchcase(cell.name, only) for cell in what.cells()):
        raise UserError(
            f"CELLS={only} is no cell of {name}: they are called {what.cells()[0].name}, or * for any part."
        )
    with locks.hold(folder / ".lock", doing=f"working in {folder}", instead="Wait for it, or name another with RUN=…"):
        making.make_vocabularies(what)
        every = cells.load(experiment, what)
        wanted = [run for run in every if fnmatchcase(run.cell.name, only)]
        making.make_caches(wanted)
        for run in wanted:
            runs.check(experiment, run, folder)
        runs.train(experiment, wanted, folder, jobs=jobs, label="matrix")
        comparison.compare([run for run in wanted if not runs.outcome(run, folder).diverged], folder)
        found = board.collect(name, what, wanted, folder)
    for cell in found["cells"]:
        print(page.line(cell))
    print(f"{found['learned']} of {found['runs']} cells have learned; publish them: make report EXP={name}")
    return 0


def check(experiment: str, folder: Path) -> int:
    """As `checks.check`: whether every cell can be trained."""
    return checks.check(experiment, _plan(experiment)[1], folder)


def publish(experiment: str, folder: Path) -> Path:
    """Write matrix.json and the README's block into the experiment's folder, and the short table into the README of the
    repository where that has a place for it; the path of the former.

    A cell that has no run in `folder` stays as it was published, if it has the same settings, text and vocabulary; what
    else is not done is left out, and the page says so. Raises UserError where nothing is done.
    """
    name, what = _plan(experiment)
    found = board.collect(name, what, cells.load(experiment, what), folder)
    if not found["runs_done"]:
        raise UserError(f"No cell of {name} is done in {shown(folder)}. Train first: make sweep EXP={name}")
    readme, kept = what.file.parent / README_FILE, what.file.parent / BOARD_FILE
    if kept.exists():
        found = board.with_published(found, read_json(kept), folder)
    text = readme.read_text(encoding="utf-8") if readme.exists() else f"# {name}\n"
    texts = {readme: with_block(text, page.block(found), page.BEGIN, page.END, readme)}
    for top, old in _top_block(what.file.parent, name):
        texts[top] = top.read_text(encoding="utf-8").replace(old, page.short_block(found, _place(what.file.parent)))
    with replaced_together(kept, *texts):
        write_results(kept, found)
        for path, new in texts.items():
            write_text(path, new)
    for path in (*texts, kept):
        print(f"report: {shown(path)}", flush=True)
    return readme


def check_page(folder: Path) -> list[str]:
    """What differs between an experiment's matrix.json and what is made from it; empty where all is in order."""
    found = read_json(folder / BOARD_FILE)
    readme = folder / README_FILE
    differences = []
    if block_of(readme.read_text(encoding="utf-8"), page.BEGIN, page.END, readme) != page.block(found):
        differences.append(f"{readme}: the block is not that of {BOARD_FILE}")
    for top, old in _top_block(folder, found["experiment"]):
        if old != page.short_block(found, _place(folder)):
            differences.append(f"{top}: the table of {found['experiment']} is not that of {folder / BOARD_FILE}")
    return differences


def _plan(experiment: str) -> tuple[str, Plan]:
    name, file = config.find_experiment(experiment)
    return name, reading.read(file.parent / plan.FILE_NAME)


def _top_block(folder: Path, experiment: str) -> list[tuple[Path, str]]:
    """The README of the repository with the experiment's block in it; none for experiments from elsewhere."""
    top = paths.REPOSITORY / README_FILE
    if not folder.resolve().is_relative_to(paths.EXPERIMENTS.resolve()):
        return []
    old = block_of(top.read_text(encoding="utf-8"), *page.short_markers(experiment), top)
    return [(top, old)] if old else []


def _place(folder: Path) -> str:
    return folder.resolve().relative_to(paths.REPOSITORY.resolve()).as_posix()
