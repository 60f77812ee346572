"""Processes that were given different things find out before they compute."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from t5xpg.base.errors import UserError
from t5xpg.distributed import ALONE
from t5xpg.distributed.group import Group
from t5xpg.experiment import config
from t5xpg.train.start import require_same

DATA = {"data": {"task": "t", "sha256": {"train": "ab"}}, "cache": None}


class Heard(Group):
    """A process that is told what another one has said."""

    process, count, first, said = 1, 2, False, b""

    def broadcast(self, name: str, value: bytes = b"") -> bytes:
        self.said = self.said or value
        return self.said


@pytest.fixture
def experiment(own_place: Path) -> Any:
    return config.load(str(own_place / "small.gin")).experiment


def test_the_same_is_the_same(experiment: Any) -> None:
    require_same(ALONE, experiment, DATA)
    group = Heard()
    require_same(group, experiment, DATA)
    require_same(group, dataclasses.replace(experiment), {**DATA, "seed": 3})


def test_what_differs_is_named(experiment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Heard()
    require_same(group, experiment, DATA)
    other = dataclasses.replace(experiment, eval_period=7)
    with pytest.raises(UserError) as raised:
        require_same(group, other, {**DATA, "data": {"task": "t", "sha256": {"train": "cd"}}})
    assert "Process 1 was started with other settings, data or versions than process 0:" in str(raised.value)
    assert "settings.eval_period  6 in process 0, 7 here" in str(raised.value)
    assert "data.sha256.train  ab in process 0, cd here" in str(raised.value)
    monkeypatch.setattr("t5xpg.base.environment.versions", lambda: {"jax": "0.0.1"})
    with pytest.raises(UserError, match=r"versions\.jax .* in process 0, 0\.0\.1 here"):
        require_same(group, experiment, DATA)
