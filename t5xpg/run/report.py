"""The report of a run: results.json, the README's results block and the curve, made from the run's records.

`publish` writes them into the experiment's folder (the only thing that writes tracked files), `write_report`
anywhere else, with the published results beside the run's own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_if_any, read_text, write_texts
from t5xpg.base.markdown import with_block
from t5xpg.base.paths import shown
from t5xpg.run import provenance
from t5xpg.run.checkpoint.folders import saved_steps
from t5xpg.run.command_options import options_of
from t5xpg.run.directory import RunDirectory
from t5xpg.run.numbers import require_references
from t5xpg.run.results import collect, read_results, results_text
from t5xpg.run.results_page import pictures, text
from t5xpg.run.seed_summary import results_of_seeds

RESULTS_FILE = "results.json"
README_FILE = "README.md"
NOT_ANSWERED = "It has not been run yet."  # as `make new` writes a page

Board: TypeAlias = Mapping[str, Any]  # a JSON value, made from the records of runs and nothing else


@dataclass(frozen=True)
class Page:
    """The presentation of a kind of board: the README's block and the pictures, made from the board and nothing else.

    board_file: its JSON in the experiment's folder. marker: the block stands between comments with this name. text:
    the Markdown in the block. pictures: {file name: SVG}.
    """

    board_file: str
    marker: str
    text: Callable[[Board], str]
    pictures: Callable[[Board], Mapping[str, str]] = lambda board: {}

    def block(self, board: Board) -> str:
        """The block between its markers, markers included, without a line end after the last."""
        begin, end = self.markers
        written_by = f"<!-- Written by `make report` from {self.board_file}. Do not edit. -->"
        return "\n\n".join((begin, written_by, self.text(board), end))

    @property
    def markers(self) -> tuple[str, str]:
        return f"<!-- {self.marker}:begin -->", f"<!-- {self.marker}:end -->"

    def texts(self, home: Path, board: Board) -> dict[Path, str]:
        """The texts of a page's files in the folder `home`. A README keeps everything outside its block."""
        readme = home / README_FILE
        text = read_text(readme) if readme.exists() else f"# {board['experiment']}\n"
        pictures = {home / name: svg for name, svg in self.pictures(board).items()}
        return {readme: with_block(text, self.block(board), *self.markers, readme), **pictures}

    def write(self, home: Path, board: Board) -> Path:
        """Write the board and the page into a folder, all of it or nothing; returns the README's path."""
        texts = {**self.texts(home, board), home / self.board_file: results_text(board)}
        write_texts(texts)
        for path in texts:
            print(f"report: {shown(path)}", flush=True)
        return home / README_FILE


PAGE = Page(RESULTS_FILE, "results", text, pictures)


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A measure, rounded as boards keep it."""
    return None if value is None else round(value, digits)


def write_report(run: RunDirectory, destination: Path, published: Path | None = None) -> Path:
    """Write results.json, curve.svg and the README's results block into `destination`; returns the README's path.

    Prints the paths, and a line if the run's last checkpoint was not evaluated. published: a
    results.json to compare with, if it is there. Raises UserError where the run has nothing to report.
    """
    results = collect(run)
    if published is not None and published.exists():
        other = read_results(published)
        results["published"] = {
            "steps": other["steps"],
            "first": {"validation": other["first"]["validation"]},
            "final": {name: other["final"][name] for name in ("train", "validation")},
            "validation": other["curves"]["validation"],
        }
    return _write(run, destination, results)


def _write(run: RunDirectory, destination: Path, results: Mapping[str, Any]) -> Path:
    """Write a run's results, and print the reason why they have no evaluation and no samples where they have none."""
    if results["evaluation"] is None:
        step = results["steps"]
        is_saved = step == max(saved_steps(run.checkpoints), default=None)
        why = "was not evaluated: make eval" if is_saved else "was recorded and not saved: make train"
        print(f"without evaluation and samples, as step {step:,} {why} {options_of(run)}")
    return PAGE.write(destination, results)


def publish(
    run: RunDirectory | None,
    experiment_dir: Path,
    *,
    seeds: Sequence[RunDirectory] = (),
    references: Sequence[Mapping[str, Any]] = (),
    allow_changed: bool = False,
) -> Path:
    """Write a run's results into the folder of its experiment; returns the README's path.

    run: None to add to the results that are published already. seeds: further runs that differ only in their seed, put
    beside it. references: published figures to stand beside them (`study.references`). Raises UserError if the folder
    or the published results are missing, the run is of another experiment, the runs differ in more than the seed, a
    reference matches none of their numbers, or (unless `allow_changed`) they were not made with the code of one commit.
    Runs that are added to published results may each be of another commit, and the page says so.
    """
    if not experiment_dir.is_dir():
        raise UserError(f"There is no experiment folder {experiment_dir}.")
    source = run.path if run else experiment_dir / RESULTS_FILE
    results = collect(run) if run else dict(read_results(source))
    if run and (experiment := results["experiment"]) != experiment_dir.name:
        raise UserError(
            f"{run.path} is a run of {experiment}; its results do not belong into {experiment_dir}. "
            f"Name the run with RUN=…, or the experiment with EXP={experiment}."
        )
    if other_seeds := results_of_seeds(source, results, seeds):
        results["seeds"] = [*results.get("seeds", ()), *other_seeds]
    if references:
        results["references"] = list(references)
    require_references(results, options_of(run) if run else f"EXP={results['experiment']}")
    if not allow_changed:
        each = [*([(run, {**results, "seeds": ()})] if run else []), *zip(seeds, other_seeds, strict=True)]
        for directory, own_results in each:
            provenance.require_commit(shown(directory.path), *provenance.git_states(own_results))
        if run:
            names = " and ".join(shown(directory.path) for directory, _ in each)
            provenance.require_commit(names, *provenance.git_states(results))
    earlier = json_object_if_any(experiment_dir / RESULTS_FILE).get("seeds", ())
    page = _write(run, experiment_dir, results) if run else PAGE.write(experiment_dir, results)
    if NOT_ANSWERED in page.read_text(encoding="utf-8"):
        print(f"{shown(page)} still answers '{NOT_ANSWERED}': write what the results say.")
    now = {results["identity"].get("seed"), *(one["seed"] for one in results.get("seeds", ()))}
    if left_out := [str(one["seed"]) for one in earlier if one["seed"] not in now]:
        print(f"seeds {', '.join(left_out)}, which were published before, are left out: ADD=… puts their runs back")
    return page
