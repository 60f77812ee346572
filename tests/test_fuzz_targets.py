"""What the fuzzer runs, without a fuzzer: its beginnings and what was found before."""

import re
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from fuzz import __main__ as program
from fuzz.targets import SEEDS, TARGETS
from tests.workplace import REPOSITORY

# Named `<target>-<what is wrong with it>`. Each of them once ended in an error of ours, or in silence.
FOUND = sorted((REPOSITORY / "tests" / "bad_input").iterdir())


@pytest.mark.parametrize("name", TARGETS)
def test_the_beginnings(name: str) -> None:
    for data in SEEDS[name]:
        TARGETS[name](data)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_what_was_found(path: Path) -> None:
    TARGETS[path.name.partition("-")[0]](path.read_bytes())


def test_every_target_has_beginnings_and_is_locked() -> None:
    assert SEEDS.keys() == TARGETS.keys()
    lock = (REPOSITORY / "requirements" / "fuzz.txt").read_text()
    assert re.fullmatch(r"(atheris==\S+ ; python_full_version .*\\\n(\s+--hash=sha256:[0-9a-f]{64}( \\)?\n?)+)+", lock)


def test_another_python_gets_packages_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Mock()
    monkeypatch.setattr(program, "FOLDER", tmp_path)
    monkeypatch.setattr(program.subprocess, "run", run)
    for python in ("cpython-311", "cpython-312", "cpython-312"):
        monkeypatch.setattr(sys.implementation, "cache_tag", python)
        program.install()
    assert run.call_count == 2
