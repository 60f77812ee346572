"""A sample of so many sentences, or so many bytes, of a text of any length: the same one for the same seed."""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from t5xpg.errors import UserError

# Characters of a sentence; what is longer is cut between words.
LONGEST_SENTENCE = 4_000
_UNITS = {"": 0, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(r"(\d{1,15})\s*(B|[KMG]i?B)?")


@dataclass(frozen=True)
class SampleSize:
    """At most so many sentences, and at most so many bytes of UTF-8; None: no limit."""

    sentences: int | None = None
    bytes: int | None = None

    @classmethod
    def parse(cls, text: str) -> SampleSize:
        """ "1000000" counts sentences, "200MB" bytes. Raises UserError for anything else."""
        match = _SIZE.fullmatch(text.strip())
        if match is None or int(match[1]) < 1:
            raise UserError(f"SAMPLE={text}: expected a number of sentences (1000000) or of bytes (200MB, 1GiB).")
        unit = _UNITS[match[2] or ""]
        return cls(bytes=int(match[1]) * unit) if unit else cls(sentences=int(match[1]))

    def __str__(self) -> str:
        """As `parse` reads it."""
        return str(self.sentences) if self.sentences is not None else f"{self.bytes}B"


class Sample:
    """Draws sentences, each with the same chance, without knowing how many there will be.

    Every sentence gets a random number, and those with the smallest numbers are kept, as many as there is room for.
    """

    def __init__(self, size: SampleSize, seed: int) -> None:
        self._size = size
        # `random` is the same on every machine and version of Python
        self._draw = random.Random(seed).random
        self._kept: list[tuple[float, int, str]] = []  # the largest number first
        self._highest = 1.0  # no sentence with this number or above is kept
        self.offered = 0
        self.bytes = 0

    def offer(self, sentence: str) -> None:
        """Keep a sentence, or not."""
        number = self._draw()
        self.offered += 1
        if number >= self._highest:
            return
        heapq.heappush(self._kept, (-number, self.offered, sentence))
        self.bytes += _bytes(sentence)
        while self._is_too_much():
            lowest, _, left_out = heapq.heappop(self._kept)
            self._highest = -lowest
            self.bytes -= _bytes(left_out)

    def _is_too_much(self) -> bool:
        most, most_bytes = self._size.sentences, self._size.bytes
        return (most is not None and len(self._kept) > most) or (most_bytes is not None and self.bytes > most_bytes)

    def sentences(self) -> list[str]:
        """What was kept, in the order in which it came."""
        return [sentence for _, _, sentence in sorted(self._kept, key=lambda kept: kept[1])]


def sentences_of(text: str, keep_spaces: bool) -> Iterator[str]:
    """The lines of a text, long ones in pieces. keep_spaces: with the spaces at their ends."""
    for line in text.split("\n") if keep_spaces else text.splitlines():
        rest = line if keep_spaces else line.strip()
        while len(rest) > LONGEST_SENTENCE:
            end = rest.rfind(" ", 1, LONGEST_SENTENCE)
            end = end if end > 0 else LONGEST_SENTENCE
            yield rest[:end]
            rest = rest[end:]
        if rest.strip():
            yield rest


def _bytes(sentence: str) -> int:
    return len(sentence) if sentence.isascii() else len(sentence.encode("utf-8"))
