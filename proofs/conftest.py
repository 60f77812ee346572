"""Proofs take minutes and run with `make prove`; they share the workplace of the tests."""

from __future__ import annotations

import pytest

from tests.workplace import Workplace, make_workplace


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return make_workplace(tmp_path_factory.mktemp("work place"))
