"""Which documents of a text without splits are held out: those with the smallest hashes of their content.

So it depends on the texts alone, not on their order, and equal texts are in one split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from t5xpg.data.manifest import SPLITS
from t5xpg.errors import UserError

# A row is kept if its text is longer.
MIN_CHARACTERS = 100
# One text in so many goes into validation, another into test, up to a number.
_HELD_OUT_OF = 25
_MAX_HELD_OUT = 10_000


@dataclass(frozen=True)
class HeldOut:
    """Validation has the hashes up to the one number, test the next ones up to the other, train the rest."""

    last_validation: int
    last_test: int

    @classmethod
    def of(cls, hashes: Iterable[int], what: str = f"documents of more than {MIN_CHARACTERS} characters") -> HeldOut:
        """Of the content hashes of all documents. what: what they are, to say that they are too few to be split.

        Raises UserError where they are.
        """
        ordered = sorted(set(hashes))
        if len(ordered) < len(SPLITS):
            raise UserError(
                f"{len(ordered)} different {what} cannot be split into "
                'train, validation and test: give more text, or name the splits, FILES="train=… validation=… test=…".'
            )
        count = min(max(1, len(ordered) // _HELD_OUT_OF), _MAX_HELD_OUT)
        return cls(ordered[count - 1], ordered[2 * count - 1])

    def split_of(self, content: int) -> str:
        """The split of a document with this content hash."""
        return "validation" if content <= self.last_validation else "test" if content <= self.last_test else "train"


def content_hash(text: str) -> int:
    """64 bits of the SHA-256 of a text: the same everywhere."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", errors="replace")).digest()[:8], "big")
