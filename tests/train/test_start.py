"""Before the first update: processes that were given different things find out, and a request to stop ends all."""

import contextlib
import dataclasses
import os
import signal
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from t5xpg.distributed import ALONE
from t5xpg.distributed.group import Group
from t5xpg.experiment import config
from t5xpg.experiment.recipe import DataIdentity
from t5xpg.run.checkpoint.initial_checkpoint import InitialCheckpoint
from t5xpg.train import train
from t5xpg.train.train import require_same, require_same_start
from tests.refusals import refused
from tests.workplace import PATIENCE

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


def test_what_differs_is_named(experiment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    require_same(ALONE, experiment, DATA)
    group = Heard()
    require_same(group, experiment, DATA)
    require_same(group, dataclasses.replace(experiment), {**DATA, "seed": 3})
    other = dataclasses.replace(experiment, eval_period=7)
    with refused("Process 1", "settings.eval_period  6", "data.sha256.train  ab"):
        require_same(group, other, {**DATA, "data": {"task": "t", "sha256": {"train": "cd"}}})
    monkeypatch.setattr("t5xpg.base.environment.versions", lambda: {"jax": "0.0.1"})
    with refused("versions.jax", "0.0.1"):
        require_same(group, experiment, DATA)


def test_a_request_to_stop_waits_for_no_library_and_no_compiler(
    own_place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ready, compiler_outlived = threading.Event(), Future[bool]()

    def load_for_long(config: Any) -> None:
        assert ready.wait(PATIENCE), "it was waited for"

    def compile_for_long(built: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        compiler_outlived.set_result(ready.wait(PATIENCE))

    monkeypatch.setattr(train, "_prepare_data", lambda *_: DataIdentity(DATA["data"]))
    monkeypatch.setattr(train, "_compile_train_step", compile_for_long)
    service = SimpleNamespace(describe=load_for_long, close=ready.set)
    monkeypatch.setattr(train, "DataService", lambda log: contextlib.closing(service))
    code = train.train(config.load(str(own_place / "small.gin")), own_place / "runs" / "stopped")
    assert code == 128 + signal.SIGTERM
    assert compiler_outlived.result(), "it was waited for"
    assert "stopped before the first step" in capsys.readouterr().out


def test_a_request_to_stop_before_it_compiles(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def service(log: Path) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return contextlib.closing(Mock())

    compiled = Mock()
    monkeypatch.setattr(train, "_prepare_data", lambda *_: DataIdentity(DATA["data"]))
    monkeypatch.setattr(train.assembly, "assemble", compiled)
    monkeypatch.setattr(train, "DataService", service)
    code = train.train(config.load(str(own_place / "small.gin")), own_place / "runs" / "stopped_early")
    assert code == 128 + signal.SIGTERM
    assert not compiled.called


def test_checkpoints_that_differ_are_named(experiment: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started, group = dataclasses.replace(experiment, initial=InitialCheckpoint("base")), Heard()
    for host in ("one", "other"):
        checkpoint = tmp_path / host / "base" / "checkpoints" / "8"
        checkpoint.mkdir(parents=True)
        (checkpoint / "SHA256SUMS").write_text(host)
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(tmp_path / "one"))
    require_same_start(ALONE, experiment)
    for _ in range(2):
        require_same_start(group, started)
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(tmp_path / "other"))
    with refused("INITIAL_CHECKPOINT"):
        require_same_start(group, started)
