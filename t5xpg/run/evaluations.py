"""The evaluations of a run: a folder each for a checkpoint or mean, a task, a split, a decoding and lengths.

A folder `evaluations/<name>/` holds evaluation.json (the record, written last), predictions/<task>.jsonl and, on the
run's own validation split, samples.json, blanks.json and attention.json. The name is for people; programs read the
record. Its "parts" say in words what was measured: {"checkpoint", "split", "task", "decoding", "lengths"}, the last
three only where they are not those of training.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.files import checked, read_json
from t5xpg.run.directory import RunDirectory

RECORD, PREDICTIONS = "evaluation.json", "predictions"
PREDICTED = ("examples", "decoding")  # what determines predicted metrics, besides the state and the split
Record = Mapping[str, Any]
State = tuple[int, int | None]  # a step, and the number of checkpoints up to it whose mean was measured; None: no mean


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of a run: its folder and its record."""

    folder: Path
    record: Record

    @property
    def samples_json(self) -> Path:
        return self.folder / "samples.json"

    @property
    def attention_json(self) -> Path:
        """The attention over the encoder, for some examples."""
        return self.folder / "attention.json"

    @property
    def significance_json(self) -> Path:
        """The comparison of the predictions with those of another run."""
        return self.folder / "significance.json"

    def predictions(self, task: str) -> Path:
        """The file of the predictions of a task."""
        return self.folder / PREDICTIONS / f"{task.replace(':', '_')}.jsonl"


def state_of(record: Record) -> State:
    """The parameters that were evaluated."""
    return record["step"], record.get("mean_of_checkpoints")


def checkpoint_text(record: Record) -> str:
    """The parameters that were evaluated: "step 4,000", or "mean of 3 checkpoints up to step 4,000"."""
    step, count = state_of(record)
    return f"mean of {count} checkpoints up to step {step:,}" if count else f"step {step:,}"


def folder_name(parts: Mapping[str, str]) -> str:
    """The name of the folder of an evaluation with such "parts": "step_4000-test-beam_4_alpha_1.0"."""
    return "-".join(re.sub(r"[^\w.+=]+", "_", text.replace(",", ""))[:80] for text in parts.values())


def all_of(run: RunDirectory) -> list[Evaluation]:
    """The evaluations of a run, the newest first. Raises UserError for a record that cannot be read."""
    found = [Evaluation(file.parent, _read(file)) for file in run.evaluations.glob(f"*/{RECORD}")]
    return sorted(found, key=lambda one: (-one.record["time"], one.folder.name))


def find(run: RunDirectory, **wanted: Any) -> Evaluation | None:
    """The newest evaluation whose record has these values (None: has no such value)."""
    return next(
        (one for one in all_of(run) if all(one.record.get(name) == value for name, value in wanted.items())), None
    )


def of_steps(
    run: RunDirectory, steps: Set[int | None], state: State | None = None
) -> tuple[Evaluation | None, dict[str, Evaluation]]:
    """The newest evaluation on the run's own validation split, of checkpoints or means up to these steps, and all
    others by their labels: of other states, tasks, splits, decodings and lengths. state: the only one that is taken."""
    found = [one for one in all_of(run) if one.record["step"] in steps and state in (None, state_of(one.record))]
    main = next((one for one in found if one.samples_json.exists()), None)
    others = sorted((one for one in found if one is not main), key=lambda one: label(one.record))
    return main, {label(one.record, None if main is None else main.record): one for one in others}


def label(record: Record, beside: Record | None = None) -> str:
    """The evaluation in words: its split, and whatever differs from the evaluation that it stands beside."""
    parts, others = record["parts"], {} if beside is None else beside["parts"]
    names = [
        name for name in dict.fromkeys([*parts, *others]) if name != "split" and parts.get(name) != others.get(name)
    ]
    return ", ".join([record["split"], *(parts.get(name, f"{name} of training") for name in names)])


def _read(file: Path) -> Record:
    try:
        record = read_json(file)
        checked(record, {"time": int | float, "step": int, "task": str, "split": str, "parts": dict})
    except ValueError as error:
        raise UserError(
            f"{file} is not readable ({error}). Measure again (make eval), or delete {file.parent}."
        ) from error
    return record
