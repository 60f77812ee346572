"""What a check finds: lines of a table, and whether something stands in the way of training."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A line of the table: what was looked at, whether it stands in the way of training, and what there is to say."""

    what: str
    text: str
    problem: bool = False
    looked_at: bool = True

    def __str__(self) -> str:
        """The line; a text of several goes on below its beginning."""
        verdict = "NO" if self.problem else "ok" if self.looked_at else "--"
        return f"{self.what:<9}{verdict:<4}" + ("\n" + " " * 13).join(self.text.splitlines())


def report(findings: Iterable[Finding]) -> int:
    """Print the table, each line once, and the verdict. Returns the exit code: 0 where it can be trained, else 1."""
    found = list(dict.fromkeys(findings))
    for finding in found:
        print(finding)
    count = sum(finding.problem for finding in found)
    print("it can be trained" if not count else f"{count} problem{'s' if count > 1 else ''}: it cannot be trained so")
    return 1 if count else 0
