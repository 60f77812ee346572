"""How far a logger has been told of a run, kept in the run's directory: a step is told once."""

from __future__ import annotations

import secrets
from pathlib import Path

from t5xpg.files import read_json, write_json


class Told:
    """`id`: the logger's own of this run. `step`: the last one that it was told of, -1 before the first."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.id, self.step = secrets.token_hex(4), -1
        try:
            found = read_json(file)
            self.id, self.step = str(found["id"]), int(found["step"])
        except (OSError, ValueError, TypeError, KeyError):  # the first start; or not readable: a run of its own there
            self._write()

    def note(self, step: int) -> None:
        """It was told of `step`."""
        self.step = step
        self._write()

    def _write(self) -> None:
        write_json(self._file, {"id": self.id, "step": self.step})
