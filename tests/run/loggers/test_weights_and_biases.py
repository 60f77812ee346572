"""Weights & Biases: rows and steps, with a stand-in for the package, and with the package itself, offline."""

import importlib.util
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock, call

import numpy as np
import pytest

from t5xpg.base.metric_values import Histogram
from t5xpg.run.loggers import StartedRun
from t5xpg.run.loggers.weights_and_biases import WeightsAndBiases
from tests.refusals import refused
from tests.workplace import PATIENCE, REPOSITORY

# A process that logs some steps, and then is killed or closes.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from t5xpg.run.loggers import StartedRun
from t5xpg.run.loggers.fanout import LastLoggedStep, LoggerThread
from t5xpg.run.loggers.weights_and_biases import WeightsAndBiases

folder, first, end, killed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "killed"
last = LastLoggedStep(folder / "WeightsAndBiases.json")
run = StartedRun("small", last.id, folder, folder, first, {"a": 1}, "", {"total_steps": 8})
records = [(step, {"train/loss": step / 2}) for step in range(end)]
thread = LoggerThread(WeightsAndBiases(), run, last, records[:first], print)
for record in records[first:]:
    thread.record(record)
if killed:
    while last.step < end - 1:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
thread.close()
"""


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Stands for the package, and for a server that has steps 0 to 4 of the run."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    package = Mock()
    package.setup.return_value.settings.mode = "online"
    package.init.return_value.starting_step = 5
    monkeypatch.setitem(sys.modules, "wandb", package)
    return package


def test_what_a_server_is_told(tmp_path: Path, wandb: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    run = StartedRun("small", "0123abcd", tmp_path, tmp_path, 2, {"model": "T5"}, "", {"total_steps": 8})
    logger = WeightsAndBiases(group="tiny", tags=("a", "b"))
    assert logger.start(run) == 4, "the server has steps behind the checkpoint"
    logger.record(6, {"train/loss": 3.0, "text": "said", "scores": Histogram(np.array([np.nan, np.inf]))})
    logger.finish()
    logged = {"train/loss": 3.0, "text": "said", "scores": None}  # no finite value
    assert wandb.mock_calls[-2:] == [call.init().log(logged, step=6, commit=True), call.init().finish()]
    given = wandb.init.call_args.kwargs
    names = {"project": "t5xpg", "name": tmp_path.name, "group": "tiny", "tags": ["a", "b"], "resume": "allow"}
    assert {**names, "id": "0123abcd"}.items() <= given.items()
    assert given["config"]["model"] == "T5"
    # variables name what gin does not
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_NAME", "from a variable")
    WeightsAndBiases(name="from gin").start(run)
    assert {"project": "mine", "name": "from gin", "tags": None}.items() <= wandb.init.call_args.kwargs.items()
    # without a key nobody is asked
    wandb.login.return_value = False
    with refused("WANDB_API_KEY", "wandb login", "WANDB_MODE=offline"):
        WeightsAndBiases().start(run)
    wandb.login.assert_called_with(prompt=False, verify=False)


def test_what_check_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("WANDB_MODE is 'of-line'", "offline"):
        WeightsAndBiases(mode="of-line").check()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused("pip install wandb"):
        WeightsAndBiases().check()


def entries(data: bytes) -> Iterator[bytes]:
    """The records of a small file of wandb: 7 bytes, then for each a checksum, a size, a kind (1: whole), its bytes."""
    at = 7
    while at < len(data):
        size, kind = struct.unpack_from("<HB", data, at + 4)
        assert kind == 1
        yield data[at + 7 : at + 7 + size]
        at += 7 + size


@pytest.mark.process
def test_the_package_itself_offline_killed_and_continued(tmp_path: Path) -> None:
    """No step twice and none missing, over two processes that were killed and one that was not."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment |= {"WANDB_MODE": "offline", "HOME": str(tmp_path)}
    for first, end, how in ((0, 3, "killed"), (2, 5, "killed"), (4, 8, "closed")):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(first), str(end), how]
        # into a file: what is left of a killed program's own processes would hold a pipe open
        with (tmp_path / "said.txt").open("w+", encoding="utf-8") as said:
            done = subprocess.run(command, env=environment, cwd=REPOSITORY, stdout=said, stderr=said, timeout=PATIENCE)
            said.seek(0)
            assert done.returncode == (-9 if how == "killed" else 0), said.read()
    from wandb.proto.wandb_internal_pb2 import Record

    rows, runs = [], set()
    for file in sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb")):
        for entry in entries(file.read_bytes()):
            record = Record.FromString(entry)
            if record.WhichOneof("record_type") == "history":
                values = {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
                rows.append((record.history.step.num, float(values["train/loss"])))
            elif record.WhichOneof("record_type") == "run":
                runs.add((record.run.run_id, record.run.project))
    assert rows == [(step, step / 2) for step in range(8)]
    assert len(runs) == 1
