"""Summaries."""

from __future__ import annotations

from collections.abc import Sequence

from t5xpg.metrics_of_tasks.references import Target, check_pairs, references_of

_KINDS = ("rouge1", "rouge2", "rougeLsum")


def rouge(targets: Sequence[Target], predictions: Sequence[str], *, use_stemmer: bool = False) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-Lsum (Lin 2004): 100 times the mean F measure over the examples.

    Sentences are lines; " . " ends one too, as in T5's evaluation. Its numbers are medians of resampled means, which
    differ from one call to the next; these are the means themselves. The words are those of rouge-score, runs of
    a-z and 0-9 after lower-casing: text in other scripts has none.
    """
    from rouge_score.rouge_scorer import RougeScorer

    check_pairs(targets, predictions)
    scorer = RougeScorer(list(_KINDS), use_stemmer=use_stemmer)
    sums = dict.fromkeys(_KINDS, 0.0)
    for target, prediction in zip(targets, predictions, strict=True):
        best = scorer.score_multi([*map(_in_lines, references_of(target))], _in_lines(prediction))
        for kind in _KINDS:
            sums[kind] += best[kind].fmeasure
    return {kind: 100.0 * total / len(targets) for kind, total in sums.items()}


def _in_lines(text: str) -> str:
    return text.replace(" . ", " .\n")
