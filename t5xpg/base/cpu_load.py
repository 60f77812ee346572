"""The share of the processor cores that other programs use while a run goes on."""

import os
from pathlib import Path

from t5xpg.base.environment import usable_cores

_PROC = Path("/proc")


class OtherProcessesLoad:
    """The share of this process's cores that other programs used since the last call, 0 to 1.

    Other programs are all except this process and those that it started; time that a host takes from a virtual machine
    counts. Read from Linux's /proc, once a call; None elsewhere, and in a container that may use less than it sees.
    """

    def __init__(self) -> None:
        self._last_ticks = self._ticks()

    def share(self) -> float | None:
        """The share since the last call, or since this object was made; None where it cannot be known."""
        before, now = self._last_ticks, self._ticks()
        self._last_ticks = now
        if before is None or now is None or now[0] <= before[0]:
            return None
        total, busy, own = (after - earlier for earlier, after in zip(before, now, strict=True))
        return min(1.0, max(0.0, (busy - own) / total))

    def _ticks(self) -> tuple[int, int, int] | None:
        """Clock ticks since the system started: of all usable cores, of them while busy, and of this program."""
        try:
            names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
            if usable_cores() < len(names):
                return None
            lines = map(str.split, (_PROC / "stat").read_text(encoding="ascii").splitlines())
            # user, nice, system, idle, waiting for disks, interrupts, soft interrupts, stolen by the host
            cores = [list(map(int, line[1:9])) for line in lines if line[0] in names]
            total = sum(map(sum, cores))
            return total, total - sum(core[3] + core[4] for core in cores), self._own_ticks()
        except (AttributeError, IndexError, OSError, ValueError):  # not Linux, or another format of the file
            return None

    def _own_ticks(self) -> int:
        """Ticks of this process and of all processes that it started, also those that have ended."""
        parents, ticks = {}, {}
        for file in _PROC.glob("[0-9]*/stat"):
            try:
                fields = file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            number = int(file.parent.name)
            parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))
        own = {os.getpid()}
        while children := {number for number, parent in parents.items() if parent in own} - own:
            own |= children
        return sum(ticks.get(number, 0) for number in own)
