"""Other processes: starting one whose output goes to a file, and the end of what it printed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

_TAIL_BYTES = 1 << 14


def start_logged(command: Sequence[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process without input whose output and errors are appended to `log`. options: of subprocess.Popen."""
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **options)


def last_lines(printed: Path | BinaryIO | str, count: int = 15) -> str:
    """The last lines of what a process printed, each indented below a message; "" where it printed nothing.

    printed: the text, its log file, or that file opened for reading.
    """
    if isinstance(printed, Path):
        with printed.open("rb") as log:
            return last_lines(log, count)
    if not isinstance(printed, str):
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - _TAIL_BYTES))
        printed = printed.read().decode("utf-8", errors="replace")
    return "\n".join(f"  {line}" for line in printed.splitlines()[-count:])
