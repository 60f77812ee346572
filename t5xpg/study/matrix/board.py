"""The board of a matrix, matrix.json, and its page: tables of the README, made from the board and from nothing else."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5xpg.base.markdown import UNKNOWN, decimals
from t5xpg.base.pages import render
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.identity import identity_settings
from t5xpg.run.records import read_jsonl
from t5xpg.run.report import Board, Page, rounded
from t5xpg.run.results import training_seconds
from t5xpg.study.matrix import unigrams
from t5xpg.study.matrix.plan import AXES, MatrixPlan
from t5xpg.study.runs import StudyRun, outcome

MEASURES = ("loss", "bits_per_byte", "accuracy")
# The objective whose targets are the whole text, whatever the vocabulary: its cells can be compared.
_COMPARABLE = "lm"

_Cell = Mapping[str, Any]


def results(plan: MatrixPlan, runs: Sequence[StudyRun]) -> Board:
    """The results of the cells, for the board.

    A cell counts as done once it was compared, or has diverged. It has learned where its loss on the held-out batches
    is lower than the unigram model's, both over all targets and over the text alone.
    """
    cells = [_cell(run) for run in runs]
    started = [run for run in runs if run.directory.exists()]
    models = {run.labels["vocabulary"]: (run.recorded().get("vocabulary") or {}).get("model_sha256") for run in started}
    vocabularies = [
        {"name": name, "title": entry.title, "command": plan.vocabulary_command(name), "model_sha256": models.get(name)}
        for name, entry in plan.vocabularies.items()
    ]
    sha256 = started[0].recorded()["data"].get("sha256") if started else None
    return {
        "dataset": {"name": plan.dataset, "sha256": sha256},
        "architectures": [{"name": name, "title": entry.title} for name, entry in plan.architectures.items()],
        "objectives": [{"name": name, "title": entry.title} for name, entry in plan.objectives.items()],
        "left_out": plan.left_out_pairs(),
        **_with_cells(cells, vocabularies),
    }


def with_published(board: Board, published: Board, runs: Sequence[StudyRun]) -> Board:
    """The board in which cells without a run here are taken from an earlier board, if they are done there.

    A cell is taken only if it belongs here: if its settings, text and vocabulary are the same.
    """
    if board["dataset"]["sha256"] not in (None, published["dataset"]["sha256"]):
        return board
    published_cells = {_name(cell): cell for cell in published["cells"] if cell["done"]}
    published_models = {entry["name"]: entry.get("model_sha256") for entry in published["vocabularies"]}
    started = {run.name for run in runs if run.directory.exists()}
    changed = {
        entry["name"]
        for entry in board["vocabularies"]
        if entry["model_sha256"] not in (None, published_models.get(entry["name"]))
    }

    def published_or_own(cell: _Cell) -> _Cell:
        other = published_cells.get(_name(cell), cell)
        same = cell["vocabulary"] not in changed and other.get("settings") == cell["settings"]
        return other if same and _name(cell) not in started else cell

    cells = [published_or_own(cell) for cell in board["cells"]]
    if cells == board["cells"]:
        return board
    vocabularies = [
        {**entry, "model_sha256": entry["model_sha256"] or published_models.get(entry["name"])}
        for entry in board["vocabularies"]
    ]
    return {
        **board,
        "dataset": published["dataset"],
        **_with_cells(cells, vocabularies),
        "sources": {
            fact: [*values, *(entry for entry in board["sources"][fact] if entry not in values)]
            for fact, values in published["sources"].items()
        },
    }


def settings_digest(experiment: Experiment) -> str:
    """The SHA-256 of all settings that decide what a cell's run computes."""
    return hashlib.sha256(json.dumps(identity_settings(experiment), sort_keys=True).encode()).hexdigest()


def _with_cells(cells: Sequence[_Cell], vocabularies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The cells and counts over them: of cells that have learned, and of ids of the tasks of a vocabulary."""
    ids = {one["name"]: {cell["ids"] for cell in cells if cell["vocabulary"] == one["name"]} for one in vocabularies}
    return {
        "vocabularies": [{**one, "ids": sorted(ids[one["name"]] - {None})} for one in vocabularies],
        "runs": len(cells),
        "runs_done": sum(cell["done"] for cell in cells),
        "learned": sum(bool(cell["learned"]) for cell in cells),
        "cells": cells,
    }


def _name(cell: _Cell) -> str:
    return ",".join(cell[axis] for axis in AXES)


def _cell(run: StudyRun) -> dict[str, Any]:
    run_outcome, comparison, experiment = outcome(run), unigrams.comparison_of(run), run.experiment
    last_record = run_outcome.last
    if last_record is not None and comparison is not None:  # must have counted what the run read
        counts = (comparison["training_tokens"], comparison["unigram"]["target_tokens"])
        if counts != (run_outcome.target_tokens, last_record["target_tokens"]):
            comparison = None
    last_record = last_record if comparison is not None else None
    done = run_outcome.diverged or last_record is not None
    record = {
        **run.labels,
        "done": done,
        "diverged_at": run_outcome.step if run_outcome.diverged else None,
        "settings": settings_digest(experiment),
        "steps": run.steps if last_record is None else run_outcome.step,  # it may have ended early
        "seed": experiment.random_seed,
        "rows": experiment.train_dataset.batch_size,
        "lengths": dict(experiment.lengths),
        "packed": experiment.train_dataset.pack,
        "ids": (run.recorded().get("vocabulary") or {}).get("size"),
        "num_params": experiment.model.num_params,
        "target_tokens": run_outcome.target_tokens if done else None,
        "held_out_target_tokens": last_record["target_tokens"] if last_record is not None else None,
        "held_out_target_bytes": last_record["target_bytes"] if last_record is not None else None,
        **_measures(last_record),
        "unigram": None,
        "of_text": None,
        "learned": None,
        "training_seconds": rounded(training_seconds(read_jsonl(run.directory.timing_jsonl)), 1) if done else None,
    }
    if last_record is None or comparison is None:
        return record
    unigram, model, of_text = comparison["unigram"], comparison["of_text"]["model"], comparison["of_text"]["unigram"]
    return record | {
        "unigram": _measures(unigram),
        "of_text": {"tokens": model["target_tokens"], **_measures(model), "unigram": _measures(of_text)},
        "learned": last_record["loss"] < unigram["loss"] and model["loss"] < of_text["loss"],
    }


def _measures(values: Mapping[str, Any] | None) -> dict[str, float | None]:
    return {name: None if values is None else rounded(values[name]) for name in MEASURES}


def text(board: Board) -> str:
    """The block of the experiment's README."""
    values = {
        measure: {tuple(cell[axis] for axis in AXES): _values(cell, measure) for cell in board["cells"]}
        for measure in ("text", "targets", "bits")
    }
    comparable = [cell for cell in board["cells"] if cell["objective"] == _COMPARABLE and cell["done"]]
    return render("matrix.md.j2", board=board, comparable=comparable, values=values)


PAGE = Page("matrix.json", "matrix", text)


def line(cell: _Cell) -> str:
    """A cell for a terminal."""
    if cell["loss"] is None:
        return f"{_name(cell)}: {_values(cell, 'text')}"
    loss, unigram = decimals(cell["of_text"]["loss"]), decimals(cell["of_text"]["unigram"]["loss"])
    verdict = "learned" if cell["learned"] else "has not learned"
    return f"{_name(cell)}: {loss} nats a token of text, unigram {unigram}: {verdict}"


def _values(cell: _Cell, measure: str) -> str:
    """Those of the model and of unigrams: nats per token of "text" or of "targets", or "bits" per byte of targets."""
    if cell["diverged_at"] is not None:
        return f"not finite after step {cell['diverged_at']:,}"
    if not cell["done"]:
        return UNKNOWN
    part, name = cell["of_text"] if measure == "text" else cell, "bits_per_byte" if measure == "bits" else "loss"
    loss, unigram = decimals(part[name]), decimals(part["unigram"][name])
    return f"{f'**{loss}**' if cell['learned'] else loss} / {unigram}"
