"""What a run is at, told to whoever watches it: `make prove-resume` kills runs in each of these phases.

Where the environment names a file descriptor, every begin and end of a phase is one line written to it; otherwise this
costs nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

VARIABLE = "T5XPG_PHASES"  # the number of an open file descriptor, a pipe
PHASES = ("compile", "step", "save", "evaluate", "restore")


@contextlib.contextmanager
def phase(name: str, step: int | None = None) -> Iterator[None]:
    """Tell the watcher that the block is `name` (one of PHASES), of the update `step` where it is of one."""
    tell("begin", name, step)
    try:
        yield
    finally:
        tell("end", name, step)


def tell(what: str, name: str, step: int | None = None) -> None:
    """One line to the watcher: "begin save 12". `what` is "begin" or "end"."""
    descriptor = os.environ.get(VARIABLE)
    if not descriptor:
        return
    with contextlib.suppress(OSError, ValueError):  # nobody watches any more
        os.write(int(descriptor), f"{what} {name} {'' if step is None else step}".rstrip().encode("ascii") + b"\n")
