"""Ids that stand for no text: notes, moves, codes. As text they are their numbers, with spaces between them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from t5xpg.errors import UserError


class PlainIds:
    """The ids below `size`, as a model of tokens; see `token_models.TokenModel`. None of them stands for bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_bytes = np.zeros(size, np.int32)
        self.own_sentinels: tuple[int, ...] = ()
        self.special_ids: dict[str, int | None] = {}  # known to the vocabulary alone
        self.covers_all_text = False

    def encode(self, text: str) -> list[int]:
        """The ids that a text names: "5 17 3". Raises UserError for what is none."""
        words = text.split()
        for word in words:
            if not (word.isascii() and word.isdecimal() and len(word) <= len(str(self.size)) and int(word) < self.size):
                raise UserError(
                    f"{word!r} is no id of this vocabulary, which knows no words: expected numbers from 0 to "
                    f"{self.size - 1} with spaces between them."
                )
        return [int(word) for word in words]

    def decode(self, ids: Sequence[int], follows: bool) -> str:
        """The numbers of the ids."""
        return " ".join(str(token) for token in ids if 0 <= token < self.size)

    def piece(self, token: int) -> str:
        """The number of an id."""
        return str(token)

    def unknown_characters(self, text: str) -> int:
        """None: what names no id is an error."""
        return 0


@functools.cache
def plain_ids(size: int) -> PlainIds:
    """The ids below `size`, made once."""
    return PlainIds(size)
