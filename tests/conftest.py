"""What all tests share: XLA that compiles fast, and a workplace."""

from __future__ import annotations

import os

import pytest

# Before any import of jax. Programs of a few steps take longer to compile than to run; what they compute is held
# by the tests to tolerances, which the level of optimisation does not reach. `Workplace` runs without it.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    ]
).strip()

from tests.workplace import Workplace, make_workplace


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A workplace in a folder with a space, away from the checkout's own. Tests use run folders of their own."""
    return make_workplace(tmp_path_factory.mktemp("work place"))


# Files that start many programs, the longest first: a process that begins with them does not end long after the others.
LONG_FILES = (
    "test_readme.py",
    "test_faults.py",
    "test_proving.py",
    "test_recording.py",
    "test_reproduction.py",
    "test_full_disk.py",
    "test_safety.py",
    "test_partitioning.py",
    "test_preparation.py",
    "test_chain.py",
    "test_evaluation.py",
    "test_training.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the long files first; nothing else changes its place."""
    place = {name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG_FILES)))
