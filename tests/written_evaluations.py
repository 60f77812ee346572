"""Evaluations of a run: the newest, and those that a test writes in place of `make eval`."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5xpg.base.files import write_json
from t5xpg.run.directory import RunDirectory
from t5xpg.run.evaluations import RECORD, Evaluation, all_of, checkpoint_text, folder_name


def newest(run: Path) -> Evaluation:
    """The newest evaluation of the run in a folder."""
    return all_of(RunDirectory(run))[0]


_TIMES = itertools.count(1)  # each evaluation is newer than those before it


def write_evaluation(
    run: RunDirectory,
    record: dict[str, Any],
    *,
    samples: Sequence[Any] | None = None,
    predictions: dict[str, Sequence[dict[str, Any]]] | None = None,
    **parts: str,
) -> Evaluation:
    """Write a record of a step, by default of the run's own validation split, to which samples belong. parts: further
    ones, as decoding="greedy"."""
    split = record.get("split", "validation")
    parts = {"checkpoint": checkpoint_text(record), "split": split, **parts}
    task = parts.get("task", record.get("task", "own"))
    facts = {**record, "time": next(_TIMES), "task": task, "split": split, "parts": parts}
    written = Evaluation(run.evaluations / folder_name(parts), facts)
    if samples is not None or (split == "validation" and "task" not in parts):
        write_json(written.samples_json, samples or [])
    for task, lines in (predictions or {}).items():
        written.predictions(task).parent.mkdir(parents=True, exist_ok=True)
        written.predictions(task).write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(written.folder / RECORD, facts)
    return written
