"""A line of what `make check` says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A line of the table: what was looked at, whether it stands in the way of training, and what there is to say."""

    what: str
    text: str
    problem: bool = False
    looked_at: bool = True

    @property
    def verdict(self) -> str:
        return "NO" if self.problem else "ok" if self.looked_at else "--"

    @property
    def shown(self) -> str:
        """The line; a text of several goes on below its beginning."""
        return f"{self.what:<9}{self.verdict:<4}" + ("\n" + " " * 13).join(self.text.splitlines())
