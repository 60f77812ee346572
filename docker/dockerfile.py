"""A Dockerfile as data: its stages, their instructions, and the files of its context. For tests and for rehearsals.

Reads what this repository's Dockerfile uses of the language, and refuses what it does not know.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

KNOWN = {
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "SHELL",
    "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
}  # fmt: skip
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S+))?\s+")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True)
class Instruction:
    """One instruction: RUN, its flags ({"mount": […]}), the rest as text, and the line on which it begins."""

    name: str
    flags: Mapping[str, list[str]]
    value: str
    line: int

    @property
    def words(self) -> list[str]:
        """The arguments, of the JSON form or split as a shell does."""
        return json.loads(self.value) if self.is_json else shlex.split(self.value)

    @property
    def is_json(self) -> bool:
        """Whether it is of the JSON form, for which no shell is started."""
        return self.value.startswith("[")

    def pairs(self) -> dict[str, str]:
        """The assignments of ENV, LABEL and ARG; an ARG without a value is empty."""
        found = (word.partition("=") for word in self.words)
        return {name: value for name, _, value in found}


@dataclass
class Stage:
    """A FROM and what follows it. base: an image, or an earlier stage."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        """Its instructions of one name."""
        return [one for one in self.instructions if one.name == name]


def parse(text: str) -> tuple[dict[str, str], list[Stage]]:
    """The ARGs before the first FROM, and the stages. Raises ValueError for what is no instruction."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for one in instructions(text):
        if one.name == "FROM":
            base, *rest = one.words
            name = rest[1] if len(rest) == 2 and rest[0].upper() == "AS" else str(len(stages))
            stages.append(Stage(name, expand(base, arguments)))
        elif not stages:
            if one.name != "ARG":
                raise ValueError(f"line {one.line}: {one.name} before the first FROM")
            arguments |= one.pairs()
        else:
            stages[-1].instructions.append(one)
    return arguments, stages


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions with their continued lines joined and their comments left out."""
    joined, begun = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("#") or not (stripped or joined):
            continue
        begun = begun or number
        joined += stripped.removesuffix("\\")
        if stripped.endswith("\\"):
            continue
        name, _, rest = joined.partition(" ")
        if name not in KNOWN:
            raise ValueError(f"line {begun}: {name} is no instruction")
        flags: dict[str, list[str]] = {}
        rest = rest.strip()
        while match := _FLAG.match(rest):
            flags.setdefault(match[1], []).append(match[2] or "")
            rest = rest[match.end() :]
        yield Instruction(name, flags, rest, begun)
        joined, begun = "", 0
    if joined:
        raise ValueError(f"line {begun}: the file ends in the middle of an instruction")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """A text with its variables replaced, those that nobody set by nothing."""
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), text)


@dataclass(frozen=True)
class Ignored:
    """What a .dockerignore leaves out of the context: the last line that matches a path or a folder around it."""

    lines: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Ignored:
        """Of the text of the file."""
        stripped = (line.strip() for line in text.splitlines())
        return cls(tuple(line for line in stripped if line and not line.startswith("#")))

    def __call__(self, path: str) -> bool:
        """Whether a path, relative to the context, is left out."""
        ignored = False
        for line in self.lines:
            pattern = line.removeprefix("!").strip("/")
            if any(_matches(part, pattern) for part in _with_parents(path)):
                ignored = not line.startswith("!")
        return ignored

    def files(self, context: Path, below: str = ".") -> list[str]:
        """The files of the context at or below a path, relative to the context, in order."""
        start = context / below
        found = [start] if start.is_file() else [path for path in start.rglob("*") if path.is_file()]
        names = sorted(path.relative_to(context).as_posix() for path in found)
        return [name for name in names if not self(name)]


def _with_parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: number + 1]) for number in range(len(parts))]


def _matches(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return any(_matches(rest, pattern[3:]) for rest in _tails(path))
    return path.count("/") == pattern.count("/") and all(
        fnmatchcase(one, other) for one, other in zip(path.split("/"), pattern.split("/"), strict=True)
    )


def _tails(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[number:]) for number in range(len(parts))]
