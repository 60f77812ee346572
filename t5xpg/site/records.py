"""The contents of the site, read from records alone: published experiments, and the runs of this machine."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from t5xpg.base import paths
from t5xpg.base.environment import git, is_commit
from t5xpg.base.errors import UserError, first_line
from t5xpg.base.files import json_object_if_any, json_object_of, read_text, sha256_of_file
from t5xpg.base.paths import shown
from t5xpg.run.directory import RunDirectory
from t5xpg.run.numbers import FILLED_IN, MEASURES, evaluations, flattened, matching_keys, trivial_results, values
from t5xpg.run.report import README_FILE, RESULTS_FILE
from t5xpg.run.results import Results, collect, read_results
from t5xpg.study.kinds import KINDS
from t5xpg.study.reproduce.reproduce import OUTCOME_FILE

_ANSWERS = {"another text shown": "exchanged", "most frequent word": "unigram"}  # beside words filled in
# Errors of a run that has only just begun, is gone, or whose files are damaged or of another format.
UNREADABLE = (UserError, OSError, LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RecursionError)
_MAX_NAME_BYTES = 200  # of a run, from which names of files are made
LOCAL = "runs-"  # before the names of runs of this machine
_SENTENCE = r"\*\*{}\.\*\* (.*?)(?:\n\n|\Z)"
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class SiteRun:
    """A run that the site shows.

    results: as `run.results.collect` makes them. id: its name on the site. published: False for a run of this machine.
    time: its last start, of a run of this machine.
    """

    id: str
    results: Results
    published: bool
    time: float = 0.0

    @property
    def curves(self) -> dict[str, list[list[float | None]]]:
        """{"validation: nats per target byte": [steps, values]}, of tasks' metrics too: "task: bleu"."""
        curves = {}
        for split, columns in self.results["curves"].items():
            for name, title in MEASURES.items():
                if name in columns:
                    curves[f"{split}: {title}"] = [columns["step"], columns[name]]
        for task, columns in self.results.get("tasks", {}).get("infer_eval", {}).items():
            for name, column in columns["metrics"].items():
                if not isinstance(column, str):
                    curves[f"{task}: {name}"] = [columns["step"], column]
        return curves

    @property
    def late_losses(self) -> list[tuple[float, float]]:
        """The validation loss without its first value: steps and losses."""
        steps, losses = next(iter(self.curves.values()))
        return [(x, y) for x, y in zip(steps, losses, strict=True) if x and y is not None]

    @property
    def totals(self) -> dict[str, float | None]:
        """The totals over all updates. The site takes the part up to a step to be in proportion to the steps."""
        results = self.results
        return {
            "steps": results["steps"],
            "tokens": results.get("target_tokens"),
            "flops": results.get("training_flops"),
            "seconds": results["timing"].get("training_seconds"),
        }

    def browser_data(self) -> dict[str, Any]:
        """The data with which a browser draws and compares the run."""
        results = self.results
        circumstances = {
            "code": {"commit": results["git"]["commit"] if results.get("git") else None},
            "gin": {**results["identity"].get("settings", {}), "seed": results["identity"].get("seed")},
            "data": {**_flat(results["identity"].get("data")), **_flat(results["identity"].get("vocabulary"))},
            "versions": results["versions"],
            "hardware": _flat(results["hardware"]),
        }
        facts = {"experiment": results["experiment"], "parameters": results["num_params"], "published": self.published}
        return {"id": self.id, **facts, "totals": self.totals, "curves": self.curves, "circumstances": circumstances}


@dataclass(frozen=True)
class Headline:
    """The number that an experiment is judged by. others: (name, value) to compare with, published figures first.

    measured_on: the split; for a mean also the number of seeds.
    """

    measure: str
    measured_on: str
    value: float
    others: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True)
class SiteExperiment:
    """An experiment that the site shows.

    text: its README. runs: the published one first, then those of this machine, but for the published one's own
    directory. board: of a sweep or a matrix, its results of all runs. state: the reliability of the published numbers,
    as (kind, text). time: of its last start or writing here; 0 for one that only came with the checkout.
    """

    name: str
    folder: Path
    text: str
    question: str
    answer: str
    runs: Sequence[SiteRun]
    board: Mapping[str, Any] | None
    state: Sequence[tuple[str, str]]
    time: float = 0.0

    @property
    def published(self) -> SiteRun | None:
        return next((run for run in self.runs if run.published), None)

    @property
    def headline(self) -> Headline | None:
        """None where nothing is published, or the experiment is many runs."""
        return headline(self.published.results) if self.published else None


def experiments(runs: Sequence[SiteRun]) -> list[SiteExperiment]:
    """All experiments of the checkout, with those of the runs of this machine that are theirs: those that the user
    trained or wrote here first, the newest before others; then all others by name."""
    site_experiments = []
    for _, folder in sorted(paths.experiments().items()):
        readme = folder / README_FILE
        if not (readme.exists() or any(folder.glob("*.gin"))) or has_link(readme):
            continue
        text = read_text(readme) if readme.exists() else f"# {folder.name}\n"
        own_runs = [run for run in runs if run.results["experiment"] == folder.name]
        time = _last_use(folder, own_runs)
        if (file := folder / RESULTS_FILE).exists() and not has_link(file):
            published = read_results(file)
            others = [
                run for run in own_runs if any(run.results[key] != published[key] for key in ("curves", "timing"))
            ]
            own_runs = [SiteRun(folder.name, published, published=True), *others]
        boards = (folder / kind.page.board_file for kind in KINDS)
        board = next((json_object_of(path) for path in boards if path.exists() and not has_link(path)), None)
        question, answer = (_sentence(text, name) for name in ("Question", "Answer"))
        state = list(_state(folder, own_runs))
        site_experiments.append(
            SiteExperiment(folder.name, folder, text, question, answer, own_runs, board, state, time)
        )
    return sorted(site_experiments, key=lambda one: -one.time)


def _last_use(folder: Path, runs: Sequence[SiteRun]) -> float:
    """The time of the last start of an experiment on this machine; of its gin files, where git does not know them."""
    begun = [run.time for run in runs]
    begun += [file.stat().st_mtime for file in (paths.runs_directory() / folder.name).glob("*/run.json")]  # of a sweep
    if not begun and (folder.parent != paths.REPOSITORY / "experiments" or git("ls-files", "--", str(folder)) == ""):
        begun = [file.stat().st_mtime for file in folder.glob("*.gin")]
    return max(begun, default=0.0)


def local_runs(left_out: Callable[[str], None] = lambda line: None) -> Iterator[SiteRun]:
    """The runs of this machine that have a validation. left_out: gets a line for each other one."""
    for path in sorted(paths.runs_directory().glob("*")):
        run = RunDirectory(path)
        if run.exists():
            try:
                if len(path.name.encode()) > _MAX_NAME_BYTES or not path.name.isprintable():
                    raise UserError("the site makes names of files of its name, which is too long or not text")
                time = run.read()["starts"][-1]["time"]
                found = SiteRun(LOCAL + path.name, collect(run), published=False, time=time)
                json.dumps([found.results, found.browser_data()], allow_nan=False)
                _ = date.fromtimestamp(time), [value and round(value) for value in found.totals.values()]
            except UNREADABLE as error:
                left_out(f"left out: {shown(path)}: {first_line(error)}")
                continue
            yield found


def has_link(file: Path) -> bool:
    """True for a link, and for a file in a folder of the repository that is one: what it leads to is not published."""
    inside = [folder for folder in file.parents if folder.is_relative_to(paths.REPOSITORY)]
    return any(path.is_symlink() for path in [file, *inside[:-1]])


def headline(results: Results) -> Headline | None:
    """The measure of the first published figure, else words filled in, else the task's metric, else the loss.

    None where none of them is a number.
    """
    measured = values(results)
    references = results.get("references", ())
    keys = [key for one in references for key in matching_keys(one, measured)]
    words = FILLED_IN.format("word")
    keys += [*(key for key in measured if key[1] == words), *(key for key in measured if key[0]), *measured]
    if not keys:
        return None
    _, measure, split = keys[0]
    others = [(one["name"], one["value"]) for one in references if keys[0] in matching_keys(one, measured)]
    others += [(name, baseline[keys[0]]) for name, baseline in trivial_results(results).items() if keys[0] in baseline]
    for one in evaluations(results):
        if measure == words and one.get("split", "validation") == split:
            others += [(name, one["blanks"]["word"][answer]) for name, answer in _ANSWERS.items()]
    seed_values = measured[keys[0]]
    measured_on = split if len(seed_values) == 1 else f"{split}, mean of {len(seed_values)} seeds"
    return Headline(MEASURES.get(measure, measure), measured_on, sum(seed_values) / len(seed_values), others)


def _sentence(text: str, name: str) -> str:
    """The paragraph of a README that begins with **`name`.**, on one line, without these words and without links."""
    match = re.search(_SENTENCE.format(name), text, re.DOTALL)
    return _LINK.sub(r"\1", " ".join(match[1].split())) if match else ""


def _state(folder: Path, runs: Sequence[SiteRun]) -> Iterator[tuple[str, str]]:
    """The reliability of the published numbers, as (kind, text)."""
    published = next((run for run in runs if run.published), None)
    if published is None:
        return
    digest = sha256_of_file(folder / RESULTS_FILE)
    outcomes = [
        outcome
        for path in sorted(paths.runs_directory().glob(f"*/{OUTCOME_FILE}"))
        if (outcome := json_object_if_any(path)).get("experiment") == folder.name and outcome.get("of") == digest
    ]
    same = sum(bool(outcome.get("same")) for outcome in outcomes)
    if same:
        yield "good", f"reproduced {same} x here"
    if same < len(outcomes):
        yield "bad", f"disputed: {len(outcomes) - same} of {len(outcomes)} reproductions here differ"
    commit = (published.results.get("git") or {}).get("commit")
    changes = changes_since(commit, folder) if commit else None
    if changes:
        yield "old", f"{changes} change{'s' if changes > 1 else ''} to its code since"


def changes_since(commit: str, folder: Path) -> int | None:
    """The number of later commits that changed the program or the experiment's gin files; None without git or the
    commit."""
    gin_files = [str(path) for path in folder.glob("*.gin")]
    if not is_commit(commit):
        return None
    count = git("rev-list", "--count", f"{commit}..HEAD", "--", "t5xpg", "gin", *gin_files)
    return None if count is None else int(count)


def _flat(value: Any) -> dict[str, Any]:
    """A JSON value as one flat mapping: {"splits.train": value}."""
    return {
        name: one if isinstance(one, str | int | float | None) else json.dumps(one)
        for name, one in flattened(value, ".")
        if name
    }
