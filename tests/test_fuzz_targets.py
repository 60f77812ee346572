"""What the fuzzer runs, without a fuzzer: its beginnings, what was found before, and a few inputs at random."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


@pytest.mark.proof
@pytest.mark.parametrize("name", TARGETS)
def test_some_at_random(name: str) -> None:
    beginnings = st.sampled_from([data for data in SEEDS[name] if data])

    @st.composite
    def damaged(draw: st.DrawFn) -> bytes:
        """A beginning with a piece replaced."""
        data = draw(beginnings)
        start = draw(st.integers(0, len(data) - 1))
        return data[:start] + draw(st.binary(max_size=8)) + data[start + draw(st.integers(0, 8)) :]

    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(st.binary(max_size=64) | damaged())
    def run(data: bytes) -> None:
        TARGETS[name](data)

    run()


def test_every_target_has_beginnings_and_is_locked() -> None:
    assert SEEDS.keys() == TARGETS.keys()
    lock = (REPOSITORY / "requirements" / "fuzz.txt").read_text()
    assert re.fullmatch(r"atheris==\S+ \\\n(\s+--hash=sha256:[0-9a-f]{64}( \\)?\n?)+", lock)
