"""Modules with the names of other people's packages, which keep what they are asked in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# What is used of wandb, with its rule that steps only grow. The folder of WANDB_SERVER is the server.
WANDB = """
import json, os
from pathlib import Path
from types import SimpleNamespace

class Settings(SimpleNamespace):
    pass

def setup(settings):
    return SimpleNamespace(settings=Settings(mode=os.environ.get("WANDB_MODE", "online")))

def login(prompt, verify):
    assert not prompt
    return "WANDB_API_KEY" in os.environ

def init(**options):
    return Run(**options)

class Run:
    def __init__(self, *, id, dir, settings, config, **options):
        assert Path(dir).is_dir() and settings.console == "off"
        self._file = Path(os.environ["WANDB_SERVER"]) / f"{id}.jsonl"
        rows = [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []
        self.starting_step = max((row["step"] for row in rows if "step" in row), default=-1) + 1
        self._at = self.starting_step - 1
        self._write({"init": options, "settings": len(config)})

    def log(self, values, step, commit):
        assert commit and step > self._at, "steps only grow"
        self._at = step
        self._write({"step": step, "values": values})

    def finish(self):
        self._write({"finish": True})

    def _write(self, row):
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\\n")
"""


def install_wandb(folder: Path) -> None:
    """A module `wandb` in `folder`, to be put on the path."""
    folder.mkdir(exist_ok=True)
    (folder / "wandb.py").write_text(WANDB)


def runs_of(server: Path) -> list[list[dict[str, Any]]]:
    """What each run there was told, in order."""
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted(server.glob("*.jsonl"))]
