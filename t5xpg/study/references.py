"""references.toml of an experiment: what others have reached on its task, to stand beside its own numbers.

[[reference]]
name = "Transformer-Tiny (Wu et al. 2021)"
metric = "bleu"
split = "test"
value = 41.02
parameters = 2_600_000
source = "https://aclanthology.org/2021.acl-long.480"
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat

from t5xpg.study.plan import AtLeastOne, Mistake, Plan, Steps, Table, Text, read

REFERENCES_FILE = "references.toml"


class Reference(Table):
    """A published figure.

    metric: of a task, as `make eval` calls it, "bleu", or of a mixture "task/bleu"; or loss (nats a target token),
    nats_per_byte, accuracy. split: of the experiment's task. source: an address, or where it was published in words.
    flops: floating point operations of its training.
    """

    name: Text
    metric: Text
    split: Text
    value: Annotated[FiniteFloat, Field(strict=False)]
    source: Text
    parameters: Steps | None = None
    flops: Annotated[float, Field(gt=0, strict=False)] | None = None


class References(Plan):
    """references.toml."""

    reference: Annotated[list[Reference], AtLeastOne]

    def mistakes(self) -> Iterator[Mistake]:
        seen = set()
        for number, one in enumerate(self.reference):
            key = (one.name, one.metric, one.split)
            if key in seen:
                yield Mistake(
                    ("reference", number, "name"), f"{one.name!r} has {one.metric} on {one.split} twice.", one.name
                )
            seen.add(key)


def of_experiment(folder: Path) -> Sequence[dict[str, Any]]:
    """The references in an experiment's folder, none where it has no such file. Raises UserError for mistakes."""
    file = folder / REFERENCES_FILE
    if not file.exists():
        return ()
    return [one.model_dump(exclude_none=True) for one in read(file, References).reference]
