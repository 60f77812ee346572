"""The receipt of a proof: what was done, what was found equal, with what and where; for people and as JSON."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from t5xpg.base.files import write_json, write_text
from t5xpg.base.phases import PHASES
from t5xpg.base.progress import duration
from t5xpg.study.proofs.comparison import Comparison
from t5xpg.study.proofs.kills import Kill

JSON_NAME, TEXT_NAME = "receipt.json", "receipt.txt"
_FORMAT = 1


@dataclass(frozen=True)
class Receipt:
    """One proof. source: `environment.git_state()`. source_changed: whether it was another one at the end."""

    experiment: str
    overrides: Sequence[str]
    steps: int
    asked: int
    seed: int
    kills: Sequence[Kill]
    rounds: int
    starts: int
    comparison: Comparison
    seconds: float
    devices: dict[str, Any] | None
    versions: dict[str, str | None]
    host: dict[str, Any]
    source: dict[str, Any] | None
    source_changed: bool

    @property
    def proven(self) -> bool:
        """Whether everything compared was equal."""
        return not self.comparison.differences

    @property
    def by_phase(self) -> dict[str, int]:
        """How many kills count for each phase; "between" has those that hit none."""
        counts = Counter(kill.phase or "between" for kill in self.kills)
        return {name: counts[name] for name in (*PHASES, "between") if counts[name]}

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "format": _FORMAT,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "proven": self.proven,
            "experiment": self.experiment,
            "overrides": list(self.overrides),
            "steps": self.steps,
            "kills": {"asked": self.asked, "seed": self.seed, "dealt": len(self.kills), "by_phase": self.by_phase},
            "rounds": self.rounds,
            "starts": self.starts,
            "seconds": round(self.seconds, 1),
            "equal": self.comparison.equal,
            "differences": self.comparison.differences,
            "versions": self.versions,
            "source": self.source,
            "source_changed": self.source_changed,
            "host": self.host,
            "devices": self.devices,
            "list_of_kills": [
                {**asdict(kill), "phase": kill.phase, "seconds": round(kill.seconds, 3)} for kill in self.kills
            ],
        }

    def text(self) -> str:
        """What is printed."""
        counts = ", ".join(f"{name} {count}" for name, count in self.by_phase.items())
        rounds = f"{self.rounds} killed run{'s' if self.rounds > 1 else ''} in {self.starts} starts"
        lines = [
            ("proof", "every resume was exact" if self.proven else "NOT the same run"),
            ("run", shlex.join([self.experiment, *self.overrides]) + f": {self.steps:,} steps"),
            ("kills", f"{len(self.kills)} by SIGKILL (seed {self.seed}): {counts}"),
            ("rounds", f"{rounds}, each compared with one that nothing interrupted"),
        ]
        lines += [("equal", _equal_text(what, facts)) for what, facts in self.comparison.equal.items()]
        lines += [("DIFFERENT", difference) for difference in self.comparison.differences]
        lines += [
            ("machine", self._machine()),
            ("versions", ", ".join(f"{name} {version}" for name, version in self.versions.items() if version)),
            ("source", self._source()),
            ("took", duration(self.seconds)),
        ]
        width = max(len(label) for label, _ in lines)
        shown = [f"{'' if before == label else label:<{width}}  {text}" for (before, _), (label, text) in _pairs(lines)]
        return "\n".join(shown) + "\n"

    def write(self, folder: Path) -> None:
        """Keep both forms in `folder`."""
        write_json(folder / JSON_NAME, self.to_json())
        write_text(folder / TEXT_NAME, self.text())

    def _machine(self) -> str:
        host, devices = self.host, self.devices or {}
        kind = f"; {devices['count']} x {devices['kind']}" if devices else ""
        return f"{host['cpu'] or 'unknown processor'}, {host['cores']} cores, {host['platform']}{kind}"

    def _source(self) -> str:
        if self.source is None:
            return "no checkout"
        changes = "" if self.source["clean"] else ", with changes"
        later = "; it was changed while this was proven" if self.source_changed else ""
        return f"commit {self.source['commit'][:12]}{changes}{later}"


def _pairs(lines: list[tuple[str, str]]) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    return list(zip([("", ""), *lines], lines, strict=False))


def _equal_text(what: str, facts: dict[str, Any]) -> str:
    digest = facts.get("sha256")
    details = ", ".join(
        f"{value:,} {name}" if isinstance(value, int) else str(value)
        for name, value in facts.items()
        if name != "sha256"
    )
    return f"{what}{f' ({details})' if details else ''}{f': sha256 {digest}' if digest else ''}"
