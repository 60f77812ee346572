"""references.toml of an experiment: published figures, to stand beside its own numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat

from t5xpg.study.plan_file import AtLeastOne, Plan, Steps, Table, Text, read

REFERENCES_FILE = "references.toml"


class Reference(Table):
    """A published figure.

    metric: a task's metric as `make eval` names it ("bleu", or "task/bleu" in a mixture), or loss (nats a target
    token), nats_per_byte, accuracy. split: of the experiment's task. source: an address, or in words where it was
    published. flops: floating point operations of its training.
    """

    name: Text
    metric: Text
    split: Text
    value: FiniteFloat
    source: Text
    parameters: Steps | None = None
    flops: Annotated[float, Field(gt=0)] | None = None


class References(Plan):
    """references.toml: [[reference]] for each."""

    reference: Annotated[list[Reference], AtLeastOne]


def of_experiment(folder: Path) -> Sequence[dict[str, Any]]:
    """The references in an experiment's folder; none where the file is missing. Raises UserError for mistakes in it."""
    file = folder / REFERENCES_FILE
    return [one.model_dump(exclude_none=True) for one in read(file, References).reference] if file.exists() else ()
