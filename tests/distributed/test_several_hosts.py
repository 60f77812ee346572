"""Real runs of two processes over loopback: one is killed, one is asked to stop, and one process goes on alone."""

import json
import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from t5xpg.distributed.group import LOST_VARIABLE
from t5xpg.experiment import config
from t5xpg.experiment.identity import data_config
from t5xpg.study.proofs import hosts
from t5xpg.study.proofs.comparison import read_checkpoint
from t5xpg.study.proofs.kills import WatchedRun
from t5xpg.train.train import train
from tests.data import recording_samples
from tests.workplace import REPOSITORY, Workplace

pytestmark = pytest.mark.process

STEPS, KILLED, STOPPED = 96, 15, 45
SETTINGS = [
    "--gin_file=gin/partitioning/data_parallel.gin",
    f"--gin.TRAIN_STEPS={STEPS}",
    "--gin.NUM_VIRTUAL_SHARDS=4",
    "--gin.CHECKPOINT_PERIOD=12",
    "--gin.EVAL_PERIOD=48",
]
DEVICES = 2


@pytest.fixture(scope="module")
def recording(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up batches of the workplace's experiment: these runs need no TensorFlow."""
    loaded = config.load(str(workplace.experiment), *config.split_overrides(" ".join(SETTINGS)))
    experiment, folder = loaded.experiment, tmp_path_factory.mktemp("recording")
    train, validation = (
        data_config(dataset, experiment.random_seed) for dataset in (experiment.train_dataset, experiment.eval_dataset)
    )
    source = {"data": {"task": "small_span_corruption"}, "cache": None, "manifest": None}
    return recording_samples.write(folder, (("train", train, STEPS, STEPS), ("validation", validation, 2, 2)), source)


class Start:
    """One start of a run on some processes, each with its share of the devices."""

    def __init__(self, workplace: Workplace, recording: Path, run: Path, count: int) -> None:
        self.outputs = [workplace.folder / f"{run.name}_{process}.log" for process in range(count)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.runs = []
        self._stack = ExitStack()
        for process in range(count):
            several = [f"--coordinator=127.0.0.1:{port}", f"--processes={count}", f"--process={process}"]
            arguments = [str(workplace.experiment), *SETTINGS, f"--recorded={recording}", f"--run={run}", *several]
            self.outputs[process].unlink(missing_ok=True)
            command = workplace.command("train", *arguments)
            devices = {"JAX_NUM_CPU_DEVICES": str(DEVICES // count)}
            own = {**workplace.environment, **devices, "PYTHONPATH": str(REPOSITORY), LOST_VARIABLE: "10"}
            watched = WatchedRun(command, self.outputs[process], own)
            self.runs.append(self._stack.enter_context(watched))

    def end(self, number: int | None = None, at: int = 0, saved: Path | None = None) -> list[int | None]:
        """Wait for all the processes and return their exit codes.

        number: a signal that the last of them is sent at the step `at`, or as soon after it as `saved` is there.
        """
        with self._stack:
            while not all(run.ended for run in self.runs):
                for run in self.runs:
                    run.listen(0.005)
                arrived = any((step or 0) >= at for step in self.runs[-1].steps["step"])
                if number is not None and arrived and (saved is None or saved.exists()):
                    self.runs[-1].send(number)
                    number = None
            assert number is None, self.said(-1)
            return [run.exit_code for run in self.runs]

    def said(self, process: int) -> str:
        return self.outputs[process].read_text()


def losses(run: Path) -> dict[tuple[int, str], float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {(record["step"], record["split"]): record["loss"] for record in records}


def arrays(run: Path) -> dict[str, np.ndarray]:
    items = read_checkpoint(run / "checkpoints" / str(STEPS))
    return {f"{item}/{name}": array for item in ("params", "optimizer") for name, array in items[item].items()}


def alone(workplace: Workplace, recording: Path, run: Path) -> None:
    loaded = config.load(str(workplace.experiment), *config.split_overrides(" ".join(SETTINGS)))
    assert train(loaded, run, recorded=recording) == 0


def test_a_run_is_the_same_on_two_hosts_on_one_and_after_a_loss(
    workplace: Workplace, recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in workplace.environment.items():
        if name.startswith("T5XPG_"):
            monkeypatch.setenv(name, value)
    one, two = workplace.folder / "runs" / "on_one_host", workplace.folder / "runs" / "on_two_hosts"
    alone(workplace, recording, one)
    lost = Start(workplace, recording, two, 2)
    # an asynchronous save may end many of these short steps after it began
    first, last = lost.end(signal.SIGKILL, KILLED, saved=two / "checkpoints" / "12")
    assert last == -signal.SIGKILL
    assert first not in (0, None), lost.said(0)
    reason = r"Process 1 of 2 .* has given no sign of life|connection to another process was lost"
    assert re.search(reason, lost.said(0))
    assert 12 <= max(int(path.name) for path in (two / "checkpoints").iterdir() if path.name.isdecimal()) < STEPS

    stopped = Start(workplace, recording, two, 2)
    assert stopped.end(signal.SIGTERM, STOPPED) == [128 + signal.SIGTERM] * 2, stopped.said(0)
    found = re.search(r"stopped after step (\d+), which is saved", stopped.said(0))
    assert found is not None
    assert STOPPED <= int(found[1]) < STEPS
    assert (two / "checkpoints" / found[1] / "SHA256SUMS").exists()
    assert "2 simulated devices of 2 processes" in stopped.said(0)
    assert "device: CPU" not in stopped.said(1)  # one of them prints

    capsys.readouterr()
    alone(workplace, recording, two)
    assert f"continues after step {found[1]}" in capsys.readouterr().out

    assert (two / "batches.sha256").read_bytes() == (one / "batches.sha256").read_bytes()
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    assert hosts._relative_l2(arrays(one), arrays(two)) < 1e-4
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()} | {"hosts"}
    starts = json.loads((two / "run.json").read_text())["starts"]
    assert [start["devices"].get("processes") for start in starts] == [2, 2, None]
