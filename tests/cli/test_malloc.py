"""malloc's settings: set for what computes, unless the user has decided."""

import os
import sys

import pytest

from t5xpg import __main__ as program
from t5xpg.base import malloc

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the settings are glibc's")


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
