"""Other processes: starting one whose output goes to a file."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def start_logged(command: Sequence[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process without input whose output and errors are appended to `log`. options: of subprocess.Popen."""
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **options)
