"""Span corruption and the objectives akin to it undone: from the papers, in plain Python over lists of ids.

Nothing of t5, SeqIO or TensorFlow is used, and no code is shared with the program.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def restored(inputs: Sequence[int], targets: Sequence[int], first_sentinel: int, sentinels: int) -> list[int]:
    """The text that was corrupted to these. Raises ValueError where there is none, or sentinels are not in order."""
    shown, hidden = (_runs(side, first_sentinel, sentinels) for side in (inputs, targets))
    text: list[int] = []
    # a side begins with a sentinel where the text begins with a run of the other
    turns = [hidden, shown] if inputs and _is_sentinel(inputs[0], first_sentinel, sentinels) else [shown, hidden]
    for place in itertools.count():
        runs = turns[place % 2]
        if not runs:
            break
        text += runs.pop(0)
    if shown or hidden:
        raise ValueError(f"{len(shown)} runs of the inputs and {len(hidden)} of the targets are left over")
    return text


def _runs(side: Sequence[int], first_sentinel: int, sentinels: int) -> list[list[int]]:
    runs: list[list[int]] = []
    used = 0
    last_was_text = False
    for token in side:
        if _is_sentinel(token, first_sentinel, sentinels):
            if token != first_sentinel - used or (used and not last_was_text):
                raise ValueError(f"sentinel {token} where {first_sentinel - used} belongs")
            used += 1
            last_was_text = False
        elif last_was_text:
            runs[-1].append(token)
        else:
            runs.append([token])
            last_was_text = True
    return runs


def _is_sentinel(token: int, first_sentinel: int, sentinels: int) -> bool:
    return first_sentinel - sentinels < token <= first_sentinel
