"""What a model was asked and has said, where it was asked for the next line. Standard library and NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t5xpg.vocabularies import Vocabulary


def completed_line(
    text: str, *, vocabulary: Vocabulary, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> str | dict[str, str]:
    """A postprocessor of SeqIO: the first line of a prediction, without the spaces around it.

    A target also tells the line before it: {"line", "before"}, as `metrics_of_tasks.next_line` takes it.
    """
    line = text.split("\n", 1)[0].strip()
    if not is_target:
        return line
    before = "" if example is None else vocabulary.decode(example["inputs"])
    return {"line": line, "before": before.removesuffix("\n").rpartition("\n")[2].strip()}
