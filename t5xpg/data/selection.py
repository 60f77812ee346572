"""A piece of a corpus that is chosen by the names of its files: SELECT='a*'. Standard library only."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from t5xpg.errors import UserError, nearest

_BEGINNING = re.compile(r"([a-z0-9]+)\*")
_SHOWN = 30  # characters of patterns in a dataset's name
_DIGITS = 8  # of their digest


@dataclass(frozen=True)
class Selection:
    """Patterns of names, of which one has to match: `*` any characters, `/` too, `?` one of them, `[ab]` a or b."""

    patterns: tuple[str, ...]

    @classmethod
    def parse(cls, given: str) -> Selection:
        """The patterns of SELECT=: words as a shell would write them. Their order means nothing."""
        try:
            patterns = sorted(set(shlex.split(given)))
        except ValueError as error:
            raise UserError(f"SELECT={given}: {error}. Expected names or patterns, SELECT='absl/* rich/*'.") from None
        if not patterns:
            raise UserError("SELECT names nothing. Expected names or patterns, SELECT='absl/* rich/*'.")
        return cls(tuple(patterns))

    def takes(self, name: str) -> bool:
        """Whether a file of this name is chosen; its folders are part of the name, with slashes."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def require_any(self, corpus: str, names: Collection[str]) -> None:
        """Raise UserError, with the nearest names, where a pattern matches none of `names`, those of a corpus."""
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                close = nearest(pattern, {*names, *_folders(names)})
                if close.startswith(" Known"):  # of all names, too many to be shown
                    close = nearest(pattern, {PurePosixPath(name).parts[0] for name in names if name})
                raise UserError(f"SELECT: no file of {corpus} matches {pattern!r}.{close}")

    @property
    def suffix(self) -> str:
        """What the name of the dataset ends in: `a` for `a*`; else something of the patterns, and their digest.

        No two selections have the same, also where file systems take capitals for small letters.
        """
        if beginning := _BEGINNING.fullmatch(str(self)):
            return beginning[1]
        readable = re.sub(r"[^A-Za-z0-9]+", "_", str(self)).strip("_")[:_SHOWN].strip("_")
        digest = hashlib.sha256(str(self).encode("utf-8", errors="backslashreplace")).hexdigest()[:_DIGITS]
        return "_".join(filter(None, (readable, digest)))

    def __str__(self) -> str:
        """As `parse` reads it."""
        return " ".join(word if _is_plain(word) else shlex.quote(word) for word in self.patterns)


def _is_plain(word: str) -> bool:
    """Whether it is one word as it stands, wildcards and all: nothing but `shlex.split` reads it."""
    return re.fullmatch(r"[\w*?\[\]!./-]+", word) is not None


def _folders(names: Collection[str]) -> Iterator[str]:
    """The folders of names, as patterns for what is in them."""
    for name in names:
        for parent in PurePosixPath(name).parents:
            if parent.name:
                yield f"{parent}/*"
