"""From a run's records to a page: results.json, the README's results block and the curve.

`publish` writes them into the experiment's folder (the only thing that writes tracked files), `write_report`
anywhere else, with the published results beside the run's own.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, replaced_together, write_text
from t5xpg.base.page import block_of, with_block
from t5xpg.base.paths import shown
from t5xpg.run.directory import RunDirectory
from t5xpg.run.results import collect, read_results, replaced_metrics, write_results
from t5xpg.run.results_page import BEGIN, CURVE_FILE, END, block, curve_svg

RESULTS_FILE = "results.json"
README_FILE = "README.md"


def write_report(run: RunDirectory, destination: Path, published: Path | None = None) -> Path:
    """Write results.json, curve.svg and the README's results block into `destination`; returns the README's path.

    Prints the paths, and what the report lacks because the run's last checkpoint was not evaluated.
    A README that is there keeps everything outside its block; one without a block gets it at its end; where there
    is none, one is made. `published` is a results.json to compare with; a path where nothing is counts as None.
    Raises UserError where the run has nothing to report.
    """
    results = collect(run, published if published is not None and published.exists() else None)
    replaced = _replaced(destination / RESULTS_FILE, results)
    readme = destination / README_FILE
    text = readme.read_text(encoding="utf-8") if readme.exists() else f"# {results['experiment']}\n"
    text = with_block(text, block(results), BEGIN, END, readme)
    curve = curve_svg(results)
    # the three say the same: they are written together or, where the disk is full, none of them
    with replaced_together(readme, destination / CURVE_FILE, destination / RESULTS_FILE):
        write_text(readme, text)
        write_text(destination / CURVE_FILE, curve)
        write_results(destination / RESULTS_FILE, results)
    for line in [not_evaluated(run, results), *replaced]:
        if line:
            print(line)
    for path in (readme, destination / RESULTS_FILE, destination / CURVE_FILE):
        print(f"report: {shown(path)}", flush=True)
    return readme


def _replaced(path: Path, results: Mapping[str, Any]) -> list[str]:
    """Lines on the predicted metrics in a results.json that new results replace by others that were made otherwise."""
    before: Mapping[str, Any] = {}
    with contextlib.suppress(UserError):  # none, or one that cannot be read: written anew
        before = read_results(path)
    pairs = [("", before.get("evaluation"), results["evaluation"])]
    others = results.get("other_splits", {})
    pairs += [(f" on {split}", before.get("other_splits", {}).get(split), one) for split, one in others.items()]
    return [f"{path.name}{where}: {line}" for where, old, new in pairs if old and new
            for line in replaced_metrics(old, new)]  # fmt: skip


def not_evaluated(run: RunDirectory, results: Mapping[str, Any]) -> str:
    """A line that says why the results have no evaluation and no samples; "" where they have."""
    if results["evaluation"] is not None:
        return ""
    named = "" if run.path.name == results["experiment"] else f" RUN={run.path.name}"
    command = f"make eval EXP={results['experiment']}{named}"
    if not run.evaluation_json.exists():
        return f"without evaluation and samples, as the run was not evaluated: {command}"
    step = read_json(run.evaluation_json).get("step", "an unknown one")
    return f"without evaluation and samples: those are of step {step}, and the run is at {results['steps']}: {command}"


def publish(run: RunDirectory, experiment_dir: Path) -> Path:
    """Write a run's results into the folder of its experiment; returns the README's path.

    Raises UserError where the folder is missing or the run is another experiment's.
    """
    if not experiment_dir.is_dir():
        raise UserError(f"There is no experiment folder {experiment_dir}.")
    experiment = run.read()["experiment"]
    if experiment != experiment_dir.name:
        raise UserError(
            f"{run.path} is a run of {experiment}; its results do not belong into {experiment_dir}. "
            f"Name the run with RUN=…, or the experiment with EXP={experiment}."
        )
    return write_report(run, experiment_dir)


def check_block(experiment_dir: Path) -> list[str]:
    """What differs between an experiment's results.json and what is made from it; empty where all is in order.

    An experiment without results.json must not show results.
    """
    readme, results_path, curve = (experiment_dir / name for name in (README_FILE, RESULTS_FILE, CURVE_FILE))
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    shown = block_of(text, BEGIN, END, readme)
    if not results_path.exists():
        without = f"but there is no {RESULTS_FILE}"
        found = [f"{readme} shows results, {without}"] if shown.removeprefix(BEGIN).removesuffix(END).strip() else []
        return found + ([f"{curve} is there, {without}"] if curve.exists() else [])
    results = read_results(results_path)
    expected = block(results)
    differences = []
    if not shown:
        differences.append(f"{readme} has no results block ({BEGIN} … {END})")
    elif shown != expected:
        lines = difflib.unified_diff(shown.splitlines(), expected.splitlines(), lineterm="", n=0)
        differences += [f"{readme}: {line}" for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    if not curve.exists():
        differences.append(f"{curve} is missing")
    elif curve.read_text(encoding="utf-8") != curve_svg(results):
        differences.append(f"{curve} is not the picture of {RESULTS_FILE}")
    return differences
