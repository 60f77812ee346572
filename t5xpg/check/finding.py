"""What a check finds: lines of a table, and whether something stands in the way of training."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from t5xpg.base.errors import UserError


@dataclass(frozen=True)
class Finding:
    """A line of the table: what was looked at, whether it stands in the way of training, and what there is to say."""

    what: str
    text: str
    problem: bool = False
    looked_at: bool = True

    def __str__(self) -> str:
        """The line of the table; further lines of the text are indented below."""
        verdict = "NO" if self.problem else "ok" if self.looked_at else "--"
        return f"{self.what:<9}{verdict:<4}" + ("\n" + " " * 13).join(self.text.splitlines())


def or_problem(what: str, found: Iterable[Finding]) -> Iterator[Finding]:
    """The findings up to a UserError, and that as the last one: a problem."""
    try:
        yield from found
    except UserError as error:
        yield Finding(what, str(error), problem=True)


def report(findings: Iterable[Finding], *, as_json: bool = False) -> int:
    """Print the table, each line once, and the verdict. Returns the exit code: 0 where it can be trained, else 1."""
    found = list(dict.fromkeys(findings))
    count = sum(finding.problem for finding in found)
    if as_json:
        shown = {"can_be_trained": not count, "findings": [asdict(finding) for finding in found]}
        print(json.dumps(shown, ensure_ascii=False, indent=1))
        return 1 if count else 0
    for finding in found:
        print(finding)
    print("it can be trained" if not count else f"{count} problem{'s' if count > 1 else ''}: it cannot be trained so")
    return 1 if count else 0
