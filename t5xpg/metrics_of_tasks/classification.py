"""Classes, as texts or as numbers."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Sequence

from t5xpg.metrics_of_tasks.references import check_pairs


def accuracy(targets: Sequence[Hashable], predictions: Sequence[Hashable]) -> dict[str, float]:
    """Share of the examples whose class was predicted."""
    from sklearn.metrics import accuracy_score

    check_pairs(targets, predictions)
    return {"accuracy": 100.0 * float(accuracy_score(*_numbered(targets, predictions)))}


def majority(targets: Sequence[Hashable], predictions: Sequence[Hashable]) -> dict[str, float]:
    """What a classifier has to beat: the share of the most frequent class of the targets, whatever was predicted."""
    check_pairs(targets, predictions)
    ((_, count),) = collections.Counter(targets).most_common(1)
    return {"majority": 100.0 * count / len(targets)}


def macro_f1(
    targets: Sequence[Hashable], predictions: Sequence[Hashable], *, labels: Sequence[Hashable] | None = None
) -> dict[str, float]:
    """The mean of the F1 of every class: each counts the same, however many examples it has.

    The classes are `labels`, by default those of the targets. A prediction that is none of them is a miss for its
    target's class, and no class of its own. A class of `labels` without targets and predictions counts 0.
    """
    from sklearn.metrics import f1_score

    check_pairs(targets, predictions)
    chosen = list(dict.fromkeys(targets if labels is None else labels))
    expected, found, numbers = _numbered(targets, predictions, chosen)
    return {"macro_f1": 100.0 * float(f1_score(expected, found, labels=numbers, average="macro", zero_division=0.0))}


def _numbered(*sequences: Sequence[Hashable]) -> list[list[int]]:
    """The same number for the same class everywhere: scikit-learn mixes no types, and models predict anything."""
    numbers: dict[Hashable, int] = {}
    return [[numbers.setdefault(label, len(numbers)) for label in labels] for labels in sequences]
