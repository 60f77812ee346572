"""malloc's settings: set for what computes, unless the user has decided; and what they do."""

import os
import sys
from pathlib import Path

import pytest

from t5xpg import __main__ as program
from t5xpg.base import malloc
from tests.workplace import run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the settings are glibc's")

# Of a large block, the share in huge pages; of many small blocks, the share that is there when a thread has freed all
# but the last one, and when what is unused was given back.
SHARES = """
import ctypes, re, threading
from t5xpg.base import malloc
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes, libc.free.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], [ctypes.c_void_p]

def size_of(kind):
    with open("/proc/self/smaps_rollup") as file:
        return int(re.search(kind + r": +(\\d+)", file.read())[1]) << 10

def filled(size):
    block = libc.malloc(size)
    libc.memset(block, 1, size)
    return block

def allocate():
    before, size = size_of("AnonHugePages"), 1 << 28
    large = filled(size)
    print((size_of("AnonHugePages") - before) / size)
    libc.free(large)
    before, small = size_of("Rss"), [filled(1 << 16) for _ in range(4097)]
    for block in small[:-1]:
        libc.free(block)
    print((size_of("Rss") - before) / size)
    malloc.release_unused()
    print((size_of("Rss") - before) / size)

thread = threading.Thread(target=allocate)
thread.start()
thread.join()
"""
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_the_program_starts_again_with_the_settings_unless_the_user_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(program.os, "execv", lambda path, arguments: started.append(arguments))
    monkeypatch.setattr(sys, "argv", ["t5xpg", "train", "an experiment"])
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.perturb=1")
    program._with_tuned_malloc()
    assert (started, os.environ["GLIBC_TUNABLES"]) == ([], "glibc.malloc.perturb=1")
    monkeypatch.delenv("GLIBC_TUNABLES")
    program._with_tuned_malloc()
    assert started == [[sys.executable, "-m", "t5xpg", "train", "an experiment"]]
    assert os.environ["GLIBC_TUNABLES"] == malloc.TUNABLES


@pytest.mark.process
def test_large_blocks_take_huge_pages_and_what_threads_free_is_kept_until_it_is_released() -> None:
    environment = {**os.environ, "GLIBC_TUNABLES": malloc.TUNABLES}
    huge, kept, released = map(float, run_python(SHARES, env=environment).split())
    assert huge > 0.1 or not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text()
    assert kept > 0.9
    assert released < 0.1
