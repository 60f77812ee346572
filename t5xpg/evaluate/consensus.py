"""The sample that the others are most like: decoding by minimum Bayes risk, with edit similarity as the gain.

Source: Kumar & Byrne 2004 for the rule; Eikema & Aziz 2020 for samples of the model as candidates and as evidence.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5xpg.data.metrics import edit_similarity
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.models.decoding import Decoded, DecodingConfig
from t5xpg.models.decoding.config import CONSENSUS


def rank_sequences(decoded: Decoded, config: DecodingConfig, vocabulary: Vocabulary) -> Decoded:
    """The sequences of each row, the best first, ranked by `config.ranked_by`; for a consensus, `config.returned` of
    them. decoded: NumPy arrays of `decode`. Texts are compared without the white space around them; of equal ones the
    likeliest comes first."""
    if config.ranked_by != CONSENSUS:
        return decoded
    tokens: Any = decoded.tokens
    scores: Any = decoded.scores
    means = np.array([mean_similarities([vocabulary.decode(sequence).strip() for sequence in row]) for row in tokens])
    order = np.argsort(-means, axis=1, kind="stable")[:, : config.returned]
    tokens = np.take_along_axis(tokens, order[..., None], axis=1)
    if scores is not None:
        scores = np.take_along_axis(scores, order, axis=1)
    return Decoded(tokens, scores)


def mean_similarities(texts: Sequence[str]) -> list[float]:
    """The mean edit similarity, 0 to 100, of each text with all of them, itself among them."""
    counts = Counter(texts)
    distinct = list(counts)
    sums = {text: 100.0 * count for text, count in counts.items()}
    for index, text in enumerate(distinct):
        for previous in distinct[:index]:
            similarity = edit_similarity([text], [previous])["edit_similarity"]
            sums[text] += counts[previous] * similarity
            sums[previous] += counts[text] * similarity
    return [sums[text] / len(texts) for text in texts]
