"""What a matrix found, as one JSON value: made from the records of its runs and what they were compared with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.experiment import Experiment
from t5xpg.experiment.identity import deciding_settings
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import read_jsonl
from t5xpg.run.results import training_seconds
from t5xpg.study.judged_sources import sources
from t5xpg.study.matrix import comparison, making
from t5xpg.study.matrix.cells import CellRun
from t5xpg.study.matrix.plan import Entry, Plan
from t5xpg.study.runs import Outcome, outcome

FORMAT = 1
MEASURES = ("loss", "bits_per_byte", "accuracy")
_DIGITS = 6

Board = dict[str, Any]


def collect(experiment: str, plan: Plan, runs: Sequence[CellRun], folder: Path) -> Board:
    """Everything that the page shows.

    A cell counts as done once it was compared. It has learned where its loss on the held-out batches is lower than that
    of the unigram model on the same: of all targets, and of the text alone. Raises UserError where cells were trained
    on different text.
    """
    cells = [_cell(run, folder) for run in runs]
    directories = [RunDirectory(folder / run.folder) for run in runs]
    _check_same_text(plan, directories)
    identities = [directory.read()["identity"] for directory in directories if directory.exists()]
    return {
        "format": FORMAT,
        "experiment": experiment,
        "dataset": {"name": plan.dataset, "sha256": identities[0]["data"].get("sha256") if identities else None},
        "architectures": [_axis(entry) for entry in plan.architectures],
        "objectives": [_axis(entry) for entry in plan.objectives],
        "vocabularies": [
            {
                **_axis(entry),
                "command": making.command(plan, entry),
                "ids": _ids(entry.name, cells),
                "model_sha256": _model(entry.name, directories),
            }
            for entry in plan.vocabularies
        ],
        "left_out": _left_out(plan),
        **_counts(cells),
        "cells": cells,
        "sources": sources(directory.path for directory in directories),
    }


def with_published(found: Board, published: Board, folder: Path) -> Board:
    """A board in which cells that have no run in `folder` are those of an earlier one, where they are done there.

    They have to belong together: the same settings, text and vocabulary. Of other ones nothing is taken.
    """
    if found["dataset"]["sha256"] not in (None, published["dataset"]["sha256"]):
        return found
    earlier = {_name(cell): cell for cell in published["cells"] if cell["done"]}
    models = {entry["name"]: entry.get("model_sha256") for entry in published["vocabularies"]}
    changed = {
        entry["name"]
        for entry in found["vocabularies"]
        if entry["model_sha256"] not in (None, models.get(entry["name"]))
    }
    cells, taken = [], False
    for cell in found["cells"]:
        other = earlier.get(_name(cell))
        begun = RunDirectory(folder / ",".join(_name(cell))).exists()
        if begun or other is None or cell["vocabulary"] in changed or other.get("settings") != cell["settings"]:
            cells.append(cell)
        else:
            cells.append(other)
            taken = True
    if not taken:
        return found
    return {
        **found,
        "dataset": published["dataset"],
        "vocabularies": [
            {
                **entry,
                "ids": _ids(entry["name"], cells),
                "model_sha256": entry["model_sha256"] or models.get(entry["name"]),
            }
            for entry in found["vocabularies"]
        ],
        **_counts(cells),
        "cells": cells,
        "sources": {
            fact: [*values, *(one for one in found["sources"][fact] if one not in values)]
            for fact, values in published["sources"].items()
        },
    }


def _counts(cells: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {
        "runs": len(cells),
        "runs_done": sum(cell["done"] for cell in cells),
        "learned": sum(bool(cell["learned"]) for cell in cells),
    }


def _name(cell: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(cell[axis] for axis in ("architecture", "objective", "vocabulary"))


def _model(vocabulary: str, directories: Iterable[RunDirectory]) -> str | None:
    """The digest of a vocabulary's model, as runs with it have noted it; None for bytes, and where there is no run."""
    for directory in directories:
        if directory.exists() and directory.path.name.rpartition(",")[2] == vocabulary:
            return (directory.read()["identity"].get("vocabulary") or {}).get("model_sha256")
    return None


def settings_digest(experiment: Experiment) -> str:
    """The SHA-256 of all settings that make a cell's run the run it is."""
    return hashlib.sha256(json.dumps(deciding_settings(experiment), sort_keys=True).encode()).hexdigest()


def _check_same_text(plan: Plan, directories: Iterable[RunDirectory]) -> None:
    """Raise UserError where runs were trained on different exports, or with different models under one name."""
    seen: dict[str, tuple[str, Path]] = {}
    for directory in directories:
        if not directory.exists():
            continue
        identity = directory.read()["identity"]
        facts = {plan.dataset: identity["data"].get("sha256")}
        vocabulary = identity.get("vocabulary") or {}
        facts[directory.path.name.rpartition(",")[2]] = vocabulary.get("model_sha256")
        for name, digest in facts.items():
            first = seen.setdefault(name, (str(digest), directory.path))
            if first[0] != str(digest):
                raise UserError(
                    f"{first[1]} and {directory.path} were trained with another {name} each: their numbers do not "
                    "belong into one table. Delete the older of them to train it again."
                )


def _axis(entry: Entry) -> dict[str, Any]:
    return {"name": entry.name, "title": entry.title}


def _ids(vocabulary: str, cells: Iterable[Mapping[str, Any]]) -> list[int]:
    """How many ids its tasks have: those with named tokens have more."""
    return sorted({cell["ids"] for cell in cells if cell["vocabulary"] == vocabulary and cell["ids"] is not None})


def _left_out(plan: Plan) -> list[dict[str, str]]:
    pairs = [(one.name, other.name) for one in plan.architectures for other in plan.objectives]
    reasons = [(*pair, plan.reason(*pair)) for pair in pairs]
    return [
        {"architecture": architecture, "objective": objective, "reason": reason}
        for architecture, objective, reason in reasons
        if reason is not None
    ]


def _cell(run: CellRun, folder: Path) -> dict[str, Any]:
    found, compared = outcome(run, folder), comparison.of(run, folder)
    directory = RunDirectory(folder / run.folder)
    experiment, cell = run.experiment, run.cell
    done = found.diverged or (found.done(run) and compared is not None and _same_targets(found, compared))
    last = found.validation[-1] if done and not found.diverged else None
    vocabulary = directory.read()["identity"].get("vocabulary") if directory.exists() else None
    record = {
        "architecture": cell.architecture.name,
        "objective": cell.objective.name,
        "vocabulary": cell.vocabulary.name,
        "task": cell.task,
        "done": done,
        "diverged_at": found.step if found.diverged else None,
        "settings": settings_digest(experiment),
        "steps": run.steps,
        "seed": experiment.random_seed,
        "rows": experiment.train_dataset.batch_size,
        "lengths": dict(experiment.lengths),
        "packed": experiment.train_dataset.pack,
        "ids": vocabulary["size"] if vocabulary is not None else None,
        "num_params": experiment.model.num_params,
        "target_tokens": found.target_tokens if done else None,
        "held_out_target_tokens": last["target_tokens"] if last is not None else None,
        "held_out_target_bytes": last["target_bytes"] if last is not None else None,
        **_measures(last),
        "unigram": None,
        "of_text": None,
        "learned": None,
        "training_seconds": _rounded(training_seconds(read_jsonl(directory.timing_jsonl)), 1) if done else None,
    }
    return record if last is None or compared is None else record | _compared(last, compared)


def _compared(last: Mapping[str, Any], compared: comparison.Comparison) -> dict[str, Any]:
    unigram, of_text = compared["unigram"], compared["of_text"]
    return {
        "unigram": _measures(unigram),
        "of_text": {
            "tokens": of_text["model"]["target_tokens"],
            **_measures(of_text["model"]),
            "unigram": _measures(of_text["unigram"]),
        },
        "learned": last["loss"] < unigram["loss"] and of_text["model"]["loss"] < of_text["unigram"]["loss"],
    }


def _same_targets(found: Outcome, compared: comparison.Comparison) -> bool:
    """Whether a run was trained on as many targets as were counted, and both were measured on as many."""
    counted = (compared["training_tokens"], compared["unigram"]["target_tokens"])
    return counted == (found.target_tokens, found.validation[-1]["target_tokens"])


def _measures(values: Mapping[str, Any] | None) -> dict[str, float | None]:
    return {name: None if values is None else _rounded(values[name], _DIGITS) for name in MEASURES}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
