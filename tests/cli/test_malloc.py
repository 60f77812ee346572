"""malloc's settings: set for what computes, unless the user has decided; and what they do."""

import os
import sys

import pytest

from t5xpg import __main__ as program
from t5xpg.base import malloc
from tests.workplace import run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the settings are glibc's")

# The share of a block of 2 GiB that is still there when a thread has freed it, and when what is unused was given back.
FREED = """
import ctypes, resource, threading
from t5xpg.base import malloc
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes, libc.free.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], [ctypes.c_void_p]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def free_a_block():
    before, size = resident(), 2 << 30
    block = libc.malloc(size)
    libc.memset(block, 1, size)
    libc.free(block)
    print((resident() - before) / size)
    malloc.release_unused()
    print((resident() - before) / size)

thread = threading.Thread(target=free_a_block)
thread.start()
thread.join()
"""


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
def test_what_threads_free_is_kept_until_it_is_released() -> None:
    kept, released = map(float, run_python(FREED, env={**os.environ, "GLIBC_TUNABLES": malloc.TUNABLES}).split())
    assert kept > 0.9
    assert released < 0.1
