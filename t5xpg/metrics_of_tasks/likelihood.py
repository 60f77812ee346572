"""How probable the targets are to the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from t5xpg.metrics_of_tasks.references import check_pairs

_LARGEST_EXPONENT = 700.0  # of what a float can hold


def perplexity(targets: Sequence[str], scores: Sequence[Any]) -> dict[str, float]:
    """Negative log-likelihood of the targets per UTF-8 byte, in nats and bits, and the perplexities of bytes and words.

    targets: texts. scores: the log-likelihood of each in nats, summed over its tokens, the end token included. Sums
    over the whole split are divided by its bytes or words (what white space divides), so that long targets count more
    than short ones. A target that TASK_FEATURE_LENGTHS cuts has the score of its beginning and the bytes of all of it:
    choose lengths that hold the targets. Raises ValueError where the targets have no byte.
    """
    check_pairs(targets, scores)
    nats = -math.fsum(float(score) for score in scores)
    num_bytes = sum(len(text.encode("utf-8", errors="surrogatepass")) for text in targets)
    if not num_bytes:
        raise ValueError("The targets are empty: their likelihood cannot be divided by their bytes.")
    words = sum(len(text.split()) for text in targets)
    return {
        "nats_per_byte": nats / num_bytes,
        "bits_per_byte": nats / num_bytes / math.log(2),
        "byte_perplexity": _exp(nats / num_bytes),
        "word_perplexity": _exp(nats / words) if words else math.inf,
    }


def _exp(value: float) -> float:
    return math.inf if value > _LARGEST_EXPONENT else math.exp(value)
