"""Completions of code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from t5xpg.metrics_of_tasks.answers import exact_match
from t5xpg.metrics_of_tasks.references import Target, check_pairs, mean_of_best


def edit_similarity(targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, float]:
    """The mean of 100 * (1 - Levenshtein distance / length of the longer text), in characters (code points).

    Two empty texts are alike. This is the edit similarity of Svyatkovskiy et al. 2020; CodeXGLUE's scripts take
    fuzzywuzzy's ratio instead, in which a replaced character counts twice.
    """
    return {"edit_similarity": mean_of_best(_similarity, targets, predictions)}


def next_line(targets: Sequence[Mapping[str, str]], predictions: Sequence[str]) -> dict[str, float]:
    """Exact match and edit similarity of predicted lines, and what two answers without a model get.

    targets: {"line", "before"}, the line that was asked for and the one before it. `…_of_line_before` are of saying
    that one again, `…_of_one_line` of always saying the line that most of the targets are: no constant matches more.
    """
    check_pairs(targets, predictions)
    lines = [target["line"] for target in targets]
    ((most_frequent, _),) = Counter(lines).most_common(1)
    answers = {
        "": predictions,
        "_of_line_before": [target["before"] for target in targets],
        "_of_one_line": [most_frequent] * len(lines),
    }
    return {
        f"{name}{whose}": value
        for whose, said in answers.items()
        for name, value in {**exact_match(lines, said), **edit_similarity(lines, said)}.items()
    }


def _similarity(reference: str, prediction: str) -> float:
    import editdistance

    longer = max(len(reference), len(prediction))
    return 1.0 - editdistance.distance(reference, prediction) / longer if longer else 1.0
