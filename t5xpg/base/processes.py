"""Other processes: starting one whose output goes to a file, and that ends with the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ENDS_WITH_INPUT = "T5XPG_ENDS_WITH_INPUT"


def start_logged(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a process whose output and errors are appended to `log`. options: of subprocess.Popen.

    A process that calls `end_with_parent` is asked to stop when this one has ended, however that came about: its input
    is a pipe that nothing is written into, and the system closes the other end.
    """
    variables = {**(os.environ if env is None else env), _ENDS_WITH_INPUT: "1"}
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=variables, **options
        )


def end_with_parent() -> None:
    """In a process of `start_logged`: get SIGTERM when the one that started it has ended."""
    if os.environ.pop(_ENDS_WITH_INPUT, None):
        threading.Thread(target=_wait_for_end_of_input, daemon=True).start()


def _wait_for_end_of_input() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
