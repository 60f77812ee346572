"""What can happen to a run, and what is left of it: one message, a state to go on from, no litter, the same numbers.

Each fault is made in a program that runs as a user's would. A full disk is in test_full_disk.py; damage to every file
of a checkpoint in test_checkpoint_damage.py; changing data in data/stream/test_client.py.
"""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from t5xpg.data.batch import hash_batch
from t5xpg.data.stream.client import NoBatchYetError
from t5xpg.experiment import config
from t5xpg.run.batch_trail import read_trail
from t5xpg.run.checkpoint.folders import saved_steps
from t5xpg.train import train
from tests.refusals import assert_named
from tests.workplace import PATIENCE, Workplace, assert_same_run, wait_until

pytestmark = pytest.mark.process

STEPS = 240
PERIODS = {"TRAIN_STEPS": STEPS, "CHECKPOINT_PERIOD": 40, "EVAL_PERIOD": 120, "STATS_PERIOD": 20}
LONG = [f"--gin.{name}={value}" for name, value in PERIODS.items()]
LITTER = re.compile(r"\.tmp\b|\.old\b|orbax-checkpoint-tmp|\.unfinished|\.removed|^\.caching-")


@pytest.fixture(scope="module")
def unbroken(workplace: Workplace) -> Path:
    workplace.run("train", str(workplace.experiment), *LONG, "--run=long")
    return workplace.folder / "runs" / "long"


def litter(workplace: Workplace, run: str) -> list[str]:
    """Temporary files of a run, and of the data and caches that all share."""
    folders = [workplace.folder / "runs" / run, workplace.folder / "data", workplace.folder / "cache"]
    return [str(path) for folder in folders for path in folder.rglob("*") if LITTER.search(path.name)]


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """Read what the process prints up to a line that holds `text`; all that was read."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


def data_process_of(process: subprocess.Popen[str]) -> int:
    """The process id of a trainer's data process."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # it has ended
            continue
        if parent == process.pid and b"t5xpg.data.stream.worker" in command:
            return int(folder.name)
    raise AssertionError("no data process")


def test_a_killed_data_process_and_a_damaged_checkpoint(workplace: Workplace, unbroken: Path) -> None:
    run, command = workplace.folder / "runs" / "damaged", ("train", str(workplace.experiment), *LONG, "--run=damaged")
    with workplace.start(*command, held_at=40) as process:
        wait_until(process, lambda: 40 in saved_steps(run / "checkpoints"))
        os.kill(data_process_of(process), signal.SIGKILL)
        process.send_signal(signal.SIGCONT)
        printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, printed
    assert litter(workplace, "damaged") == []
    saved = saved_steps(run / "checkpoints")[-1]
    assert_named(printed, ["signal 9", f"Step {saved} is saved"])
    assert saved < 80
    with workplace.start(*command, held_at=80) as process:
        wait_until(process, lambda: saved_steps(run / "checkpoints")[-1] > saved)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    *earlier, last = saved_steps(run / "checkpoints")
    assert earlier
    largest = max((run / "checkpoints" / str(last) / "params").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0x10
    largest.write_bytes(content)
    printed = workplace.run(*command)
    assert largest.name in printed
    assert f"continues after step {earlier[-1]}\n" in printed
    assert_same_run(run, unbroken, STEPS)
    assert litter(workplace, "damaged") == []


def test_a_run_that_is_stopped_before_its_first_batch_comes(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_batch_comes(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise NoBatchYetError

    workplace.enter(monkeypatch)
    monkeypatch.setattr(train, "loop", no_batch_comes)
    loaded = config.load(str(workplace.experiment))
    assert train.train(loaded, workplace.folder / "runs" / "no batch") == 128 + signal.SIGTERM
    assert capsys.readouterr().out.endswith("stopped before the first step; the same command goes on from there\n")


def test_the_second_trainer_is_told_of_the_first_and_a_second_interrupt_stops_at_once(workplace: Workplace) -> None:
    long = ("--gin.TRAIN_STEPS=100000", "--gin.CHECKPOINT_PERIOD=50000", "--run=twice")
    metrics = workplace.folder / "runs" / "twice" / "metrics.jsonl"
    with workplace.start("train", str(workplace.experiment), *long) as process:
        wait_until(process, lambda: metrics.exists() and metrics.stat().st_size)
        workplace.refused("train", str(workplace.experiment), *long, words=[f"Process {process.pid}", "RUN="])
        os.kill(data_process_of(process), signal.SIGSTOP)  # what is saved includes the position in the data
        process.send_signal(signal.SIGINT)
        line_with(process, "stopping after this step; once more stops at once")
        time.sleep(1.1)  # until then it is the same request
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGINT, printed
    assert_named(printed, ["t5xpg: interrupted\n"])
    assert litter(workplace, "twice") == []


def test_a_run_that_leaves_the_finite_numbers_says_where_and_keeps_the_batch(workplace: Workplace) -> None:
    run = workplace.folder / "runs" / "not finite"
    too_fast = ["--gin.LEARNING_RATE=1e30", "--gin.WARMUP_STEPS=1", "--gin.CHECKPOINT_PERIOD=1"]
    tolerant = [*too_fast, "--gin.SKIP_NONFINITE=2", "--run=not finite"]
    printed = workplace.refused("train", str(workplace.experiment), *tolerant)
    found = re.search(r"error: .* of step (\d+) (is|are) not finite \((.*?)\)", printed)
    assert found is not None, printed
    step = int(found[1])
    assert "gradients of decoder/" in found[3]
    assert_named(printed, ["LEARNING_RATE", f"Step {step - 1} is saved"])
    assert saved_steps(run / "checkpoints")[-1] == step - 1
    kept = run / "nonfinite" / f"step_{step:08d}"
    with np.load(kept / "batch.npz", allow_pickle=False) as arrays:
        assert hash_batch(dict(arrays)) == read_trail(run / "batches.sha256")[step - 1]
    record = json.loads((kept / "step.json").read_text())
    assert record["parameters"]
    assert litter(workplace, "not finite") == []
    assert_named(printed, ["skipped, 1 of 2", "skipped, 2 of 2", "SKIP_NONFINITE=2"])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "skipped"] == [step - 2, step - 1]
