"""The memory of processes: proportional set sizes (PSS), which add up, and the largest size of this one. Linux only."""

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


def size(file: str, name: str) -> int:
    """The bytes that a file of /proc gives under a name; 0 where there are none, as of a process that is gone."""
    with contextlib.suppress(OSError):
        for line in Path(file).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
    return 0


def _runs(pid: int) -> bool:
    """Whether a process has not ended. It may run without memory for a moment, between its fork and its program."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Peak(threading.Thread):
    """Samples until a process ends: the largest PSS in bytes of it (`own`), and of it with its descendants at one
    moment (`total`)."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.total = self.own = 0
        self.start()

    def run(self) -> None:
        while True:
            sizes = {one: size(f"/proc/{one}/smaps_rollup", "Pss") for one in tree(self.pid)}
            self.own = max(self.own, sizes[self.pid])
            self.total = max(self.total, sum(sizes.values()))
            if not _runs(self.pid):
                return
            time.sleep(SAMPLE_SECONDS)
