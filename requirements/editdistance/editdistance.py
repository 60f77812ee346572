"""`editdistance.eval` and `editdistance.distance`, as seqio and t5 call them, on rapidfuzz."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from rapidfuzz.distance import Levenshtein


def distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Levenshtein distance between two sequences of hashable items."""
    return Levenshtein.distance(a, b)


eval = distance
