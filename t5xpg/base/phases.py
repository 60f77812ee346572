"""The phases of a training run, reported to the process that watches it: `make prove-resume` kills runs in each.

If the environment variable names a file descriptor, one line is written to it at the beginning of each phase and one at
its end; otherwise this costs nothing.
"""

import contextlib
import os
from collections.abc import Iterator

VARIABLE = "T5XPG_PHASES"  # the number of an open file descriptor, a pipe
PHASES = ("compile", "step", "save", "evaluate", "restore")


@contextlib.contextmanager
def phase(name: str, step: int | None = None) -> Iterator[None]:
    """Report the block as the phase `name`, one of PHASES. step: the update that it belongs to, if any."""
    begin(name, step)
    try:
        yield
    finally:
        end(name, step)


def begin(name: str, step: int | None = None) -> None:
    """Report the beginning of a phase: "begin save 12"."""
    _report(f"begin {name}", step)


def end(name: str, step: int | None = None) -> None:
    """Report the end of a phase."""
    _report(f"end {name}", step)


def _report(line: str, step: int | None) -> None:
    descriptor = os.environ.get(VARIABLE)
    if descriptor:
        with contextlib.suppress(OSError, ValueError):  # nobody watches any more
            os.write(int(descriptor), f"{line}{'' if step is None else f' {step}'}\n".encode("ascii"))
