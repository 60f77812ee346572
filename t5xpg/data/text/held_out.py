"""The division of a source without splits into train, validation and test, by the hashes of its documents."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from t5xpg.base.errors import UserError
from t5xpg.data.text.manifest import SPLITS

# One text in _HELD_OUT_OF goes into validation, another into test, up to _MAX_HELD_OUT texts each.
_HELD_OUT_OF = 25
_MAX_HELD_OUT = 10_000


class TooFewError(UserError):
    """There are fewer documents than splits."""


@dataclass(frozen=True)
class HeldOut:
    """Validation has the hashes up to `last_validation`, test the next ones up to `last_test`, train the others."""

    last_validation: int
    last_test: int

    @classmethod
    def from_hashes(cls, hashes: Iterable[int], noun: str = "documents") -> "HeldOut":
        """The division for the content hashes of all documents. Raises TooFewError if fewer than three differ. noun:
        the word for documents in the message."""
        ordered = sorted(set(hashes))
        if len(ordered) < len(SPLITS):
            raise TooFewError(
                f"{len(ordered)} different {noun} cannot be split into "
                'train, validation and test: give more text, or name the splits, FILES="train=… validation=… test=…".'
            )
        count = min(max(1, len(ordered) // _HELD_OUT_OF), _MAX_HELD_OUT)
        return cls(ordered[count - 1], ordered[2 * count - 1])

    def split_of(self, content_hash: int) -> str:
        """The split of a document."""
        if content_hash <= self.last_validation:
            return "validation"
        return "test" if content_hash <= self.last_test else "train"


def content_hash(text: str) -> int:
    """The first 64 bits of the SHA-256 of a text: the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", errors="replace")).digest()[:8], "big")
