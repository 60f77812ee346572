"""The findings of a check: lines of a table, some of which are problems that prevent training."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from t5xpg.base.errors import UserError


@dataclass(frozen=True)
class Finding:
    """A line of the table: the thing that was checked, the result as text, and whether it prevents training.

    looked_at: False where the check was not made. The fields are the keys of `make check JSON=1`.
    """

    what: str
    text: str
    problem: bool = False
    looked_at: bool = True

    def __str__(self) -> str:
        """The line of the table; further lines of the text are indented below."""
        verdict = "NO" if self.problem else "ok" if self.looked_at else "--"
        return f"{self.what:<9}{verdict:<4}" + ("\n" + " " * 13).join(self.text.splitlines())


def mistakes(messages: Iterable[str], *, loaded: bool) -> list[Finding]:
    """The mistakes of a configuration. loaded: whether it could be loaded all the same, and the rest is looked at."""
    rest = Finding("the rest", "is looked at once these are mended", looked_at=False)
    return [*(Finding("gin", message, problem=True) for message in messages), *([] if loaded else [rest])]


def errors_as_problems(what: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yields the findings; a UserError while they are made becomes the last finding, a problem."""
    try:
        yield from findings
    except UserError as error:
        yield Finding(what, str(error), problem=True)


def report(findings: Iterable[Finding], *, as_json: bool = False) -> int:
    """Print the table, each line once, and the verdict. Returns the exit code: 0 if there is no problem, else 1."""
    distinct = list(dict.fromkeys(findings))
    count = sum(finding.problem for finding in distinct)
    if as_json:
        verdict = {"can_be_trained": not count, "findings": [asdict(finding) for finding in distinct]}
        print(json.dumps(verdict, ensure_ascii=False, indent=1))
        return 1 if count else 0
    for finding in distinct:
        print(finding)
    print("it can be trained" if not count else f"{count} problem{'s' if count > 1 else ''}: it cannot be trained so")
    return 1 if count else 0
