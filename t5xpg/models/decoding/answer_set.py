"""A finite set of answers: as rows of tokens, and as a `Constraint`, the trie of these. With NumPy, once for a set."""

from collections.abc import Sequence

import numpy as np

from t5xpg.models.decoding.constraint import Constraint, automaton


def token_rows(answers: Sequence[Sequence[int]], eos_id: int = 1) -> np.ndarray:
    """The answers (at least one; token ids above 0, without an end) as [M, T] int32, each with its end, then 0."""
    rows = np.zeros((len(answers), 1 + max(map(len, answers))), np.int32)
    for row, answer in zip(rows, answers, strict=True):
        row[: len(answer) + 1] = [*answer, eos_id]
    return rows


def trie(rows: np.ndarray, eos_id: int = 1) -> Constraint:
    """The automaton that accepts the answers of `token_rows`, and nothing else."""
    rows = np.unique(rows, axis=0)  # sorted, each once
    # a token stands for a transition of its own unless the row above begins with the same tokens
    same = np.cumprod(rows[1:] == rows[:-1], axis=1, dtype=np.bool_)
    is_new = (rows != 0) & np.concatenate([np.ones((1, rows.shape[1]), np.bool_), ~same])
    leads_on = is_new & (rows != eos_id)
    # states: 0, then one for each new token but the ends, row by row, then the end
    numbers = np.where(leads_on, np.cumsum(leads_on).reshape(rows.shape), 0)
    end = int(numbers.max()) + 1
    # the state before a token is the last new one above it, in the column to its left
    before = np.pad(np.maximum.accumulate(numbers, axis=0)[:, :-1], ((0, 0), (1, 0)))
    sources, tokens = before[is_new], rows[is_new]
    targets = np.where(leads_on, numbers, end)[is_new]
    return automaton(sources, tokens, targets, end + 1)
