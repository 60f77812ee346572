"""The memory of a process and of what it has started: proportional set sizes (PSS), which add up. Linux only."""

import contextlib
import threading
import time
from pathlib import Path

SAMPLE_SECONDS = 0.1


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    return [pid, *(one for child in children for one in tree(child))]


def pss(pid: int) -> int:
    """The proportional set size of a process in bytes; 0 where it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def _runs(pid: int) -> bool:
    """Whether a process has not ended. It may run without memory for a moment, between its fork and its program."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Peak:
    """The largest memory in bytes of a process (`own`), and of it with its descendants at one moment (`total`)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.total = self.own = 0

    def sample(self) -> bool:
        """Measure once; returns whether the process is still running."""
        sizes = {one: pss(one) for one in tree(self.pid)}
        self.own = max(self.own, sizes.get(self.pid, 0))
        self.total = max(self.total, sum(sizes.values()))
        return _runs(self.pid)


def watch(pid: int) -> Peak:
    """Sample a process's memory in a thread of its own, until the process ends."""
    peak = Peak(pid)
    threading.Thread(target=_sample, args=(peak,), daemon=True).start()
    return peak


def _sample(peak: Peak) -> None:
    while peak.sample():
        time.sleep(SAMPLE_SECONDS)
