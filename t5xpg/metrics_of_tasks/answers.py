"""Answers to questions: exact match and F1 of words, with the normalisations of SQuAD and TriviaQA."""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable, Sequence

from t5xpg.metrics_of_tasks.references import Target, check_pairs, mean_of_best, references_of

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_SQUAD_PUNCTUATION = str.maketrans("", "", string.punctuation)
_QUOTATION_MARKS = "\u2018\u2019\u00b4`"
_TRIVIA_QA_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + _QUOTATION_MARKS, " "))


def exact_match(targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, float]:
    """Share of the predictions that are one of their references, character by character."""
    return {"exact_match": mean_of_best(_equal, targets, predictions)}


def token_f1(targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, float]:
    """F1 of the words, which white space divides, as they are. Two texts without words agree."""
    return {"token_f1": mean_of_best(_f1, targets, predictions)}


def squad(targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, float]:
    """SQuAD's "exact" and "f1" (Rajpurkar et al. 2016, 2018), as evaluate-v2.0.py computes them.

    Lower case, no punctuation, no articles. A question without an answer has "" for its target. Version 1.1's script
    gives the same numbers except for answers of which the normalisation leaves nothing ("The"): where another answer
    is left, these do not count; where none is, the prediction has to be nothing too.
    """
    return _answers(targets, predictions, _normalized_squad, only_with_text=True)


def trivia_qa(targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, float]:
    """TriviaQA's exact match and F1 (Joshi et al. 2017) over the aliases of the answer.

    Lower case, punctuation as white space, no articles, as in its official script.
    """
    return _answers(targets, predictions, _normalized_trivia_qa, only_with_text=False)


def _answers(
    targets: Sequence[Target], predictions: Sequence[str], normalized: Callable[[str], str], *, only_with_text: bool
) -> dict[str, float]:
    check_pairs(targets, predictions)
    references = [list(map(normalized, references_of(target))) for target in targets]
    if only_with_text:
        references = [list(filter(None, answers)) or [""] for answers in references]
    answered = list(map(normalized, predictions))
    return {"em": mean_of_best(_equal, references, answered), "f1": mean_of_best(_f1, references, answered)}


def _normalized_squad(text: str) -> str:
    return _without_articles(text.lower().translate(_SQUAD_PUNCTUATION))


def _normalized_trivia_qa(text: str) -> str:
    return _without_articles(text.lower().translate(_TRIVIA_QA_PUNCTUATION))


def _without_articles(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text).split())


def _equal(reference: str, prediction: str) -> float:
    return float(reference == prediction)


def _f1(reference: str, prediction: str) -> float:
    expected, found = reference.split(), prediction.split()
    if not expected or not found:
        return float(expected == found)
    common = sum((collections.Counter(expected) & collections.Counter(found)).values())
    return 2.0 * common / (len(expected) + len(found))
