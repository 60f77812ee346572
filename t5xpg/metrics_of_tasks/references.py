"""What all metrics do first: examples that belong together, and their references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# One text, or several that are equally right.
Target = str | Sequence[str]


def check_pairs(targets: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise ValueError where there are no examples, or not as many targets as outputs."""
    if len(targets) != len(outputs):
        raise ValueError(f"There are {len(targets)} targets and {len(outputs)} outputs of the model.")
    if not len(targets):
        raise ValueError("There are no examples: nothing can be measured.")


def references_of(target: Target) -> list[str]:
    """The references of one example. Raises ValueError where there are none."""
    references = [target] if isinstance(target, str) else list(target)
    if not references:
        raise ValueError("An example has no reference: nothing can be compared with it.")
    return references


def mean_of_best(score: Callable[[str, str], float], targets: Sequence[Target], predictions: Sequence[str]) -> float:
    """100 times the mean over the examples of `score(reference, prediction)` with the reference that suits best."""
    check_pairs(targets, predictions)
    best = (
        max(score(reference, prediction) for reference in references_of(target))
        for target, prediction in zip(targets, predictions, strict=True)
    )
    return 100.0 * sum(best) / len(targets)
