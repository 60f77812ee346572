"""What the fuzzer runs, without a fuzzer: its beginnings and what was found before."""

from pathlib import Path

import pytest

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
