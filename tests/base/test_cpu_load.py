"""What other programs take of the processors, from a made-up /proc."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from t5xpg.base import cpu_load
from t5xpg.base.cpu_load import OtherProcessesLoad

OWN, CHILD, GRANDCHILD, OTHER = os.getpid(), 10**8, 10**8 + 1, 10**8 + 2
PARENTS = {OWN: 1, CHILD: OWN, GRANDCHILD: CHILD, OTHER: 1}


def write(proc: Path, cores: Mapping[int, tuple[int, int]], used: Mapping[int, int]) -> None:
    """cores: ticks that each was busy and idle. used: ticks of processes, as user, system and of ended children."""
    lines = [f"cpu{core} {busy - 4} 1 1 {idle - 2} 2 1 0 1 7 7\n" for core, (busy, idle) in cores.items()]
    (proc / "stat").write_text(f"cpu  9 9 9 9 9 9 9 9 0 0\n{''.join(lines)}intr 5\n")
    for process, ticks in used.items():
        folder = proc / str(process)
        folder.mkdir(exist_ok=True)
        counted = f"{ticks - 3} 1 1 1"
        (folder / "stat").write_text(f"{process} (a) b) S {PARENTS[process]} 0 0 0 0 0 0 0 0 0 {counted} 20 0")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2}, raising=False)
    monkeypatch.setattr(cpu_load, "usable_cores", lambda: 2)
    monkeypatch.setattr(cpu_load, "_PROC", tmp_path)
    return tmp_path


def test_the_share_is_that_of_other_programs_on_the_cores_of_this_one(proc: Path) -> None:
    write(proc, {0: (100, 100), 1: (500, 500), 2: (100, 100)}, {OWN: 50, CHILD: 10, OTHER: 90})
    others = OtherProcessesLoad()
    # 200 ticks of two cores: 150 busy, of which 70 + 15 + 5 are of this program
    write(proc, {0: (180, 120), 1: (999, 999), 2: (170, 130)}, {OWN: 120, CHILD: 25, GRANDCHILD: 5, OTHER: 150})
    assert others.share() == pytest.approx((150 - 90) / 200)
    assert others.share() is None  # no time has passed
    write(proc, {0: (280, 120), 1: (0, 2), 2: (270, 130)}, {OWN: 325, CHILD: 25})
    assert others.share() == 0  # clocks that disagree by a tick


def test_where_it_cannot_be_known_it_is_none(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert OtherProcessesLoad().share() is None  # no such file
    monkeypatch.setattr(cpu_load, "usable_cores", lambda: 1)  # a container may use less than it sees
    write(proc, {0: (100, 100), 2: (100, 100)}, {OWN: 50})
    assert OtherProcessesLoad().share() is None
