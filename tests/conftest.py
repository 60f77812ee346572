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
