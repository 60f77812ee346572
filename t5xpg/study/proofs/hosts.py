"""Proof by command that a run does not depend on how many processes train it: `make prove-hosts EXP=… PROCESSES=4`.

An experiment is trained on 1, 2, 4, … processes that talk over loopback and share PROCESSES simulated CPU devices. In a
run of two processes, one of them is killed with SIGKILL, and the run is started again. Another run begins on two
processes and continues on one; the last begins on one and continues on two.
"""

import signal
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from t5xpg.base import environment
from t5xpg.base.errors import UserError
from t5xpg.base.files import last_lines, write_json
from t5xpg.base.markdown import aligned
from t5xpg.base.paths import shown
from t5xpg.base.progress import duration
from t5xpg.experiment import config
from t5xpg.experiment.config import LoadedConfig
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import read_jsonl
from t5xpg.study.proofs.comparison import Arrays, compare, read_checkpoint
from t5xpg.study.proofs.folder import proof_folder, say
from t5xpg.study.proofs.kills import WatchedRun
from t5xpg.study.runs import ended_message, train_command

RECEIPT = "hosts.json"
# Differences after some tens of updates: sums over devices are added up in another order where processes share them.
LOSS_TOLERANCE, PARAMETER_TOLERANCE = 1e-5, 1e-4
_OUTPUT = "output"
_KILLED, _MOVED = "killed", {"from_2_to_1": (2, 1), "from_1_to_2": (1, 2)}
_EXACT = {None: "", True: "bit for bit", False: "NOT bit for bit"}
_END_SECONDS = 300.0  # in which all processes have to end after one of them got a signal


@dataclass(frozen=True)
class ComparedRun:
    """A run compared with the one of a single process. losses: largest relative difference; parameters: relative L2.

    exact: whether it equals the unbroken run of equally many processes bit for bit; None where that is not compared.
    """

    run: str
    batches: bool
    losses: float
    parameters: float
    exact: bool | None = None

    @property
    def holds(self) -> bool:
        same = self.batches and self.losses <= LOSS_TOLERANCE and self.parameters <= PARAMETER_TOLERANCE
        return same and self.exact is not False


def prove_hosts(experiment: str, overrides: Sequence[str], *, processes: int, path: Path) -> int:
    """Train, kill, move and compare in the folder `path`; prints a table, and keeps it there as JSON.

    overrides: as for `make train`. Returns the exit code: 0 where all runs are the same run, else 1. Raises UserError
    for what the user can mend.
    """
    if processes < 2 or processes & (processes - 1):
        raise UserError(f"PROCESSES={processes}: 2, 4, 8, … of them are compared with one.")
    forced = ["--gin_file=gin/partitioning/data_parallel.gin", f"--gin.NUM_VIRTUAL_SHARDS={processes}"]
    arguments = [experiment, *overrides, *forced]
    loaded = config.load(experiment, *config.split_overrides(" ".join([*overrides, *forced])))
    steps, period = loaded.experiment.total_steps, loaded.experiment.checkpoints.period
    if 3 * period > steps:
        raise UserError(
            f"A run of {steps:,} steps that saves every {period:,} cannot be interrupted between checkpoints: "
            f'GIN="--gin.CHECKPOINT_PERIOD={max(1, steps // 4)}".'
        )
    own = {_OUTPUT, RECEIPT, _KILLED, *_MOVED, *(f"on_{2**power}" for power in range(16))}
    with proof_folder(path, own) as folder:
        (folder / _OUTPUT).mkdir()
        start = time.monotonic()
        rows = _Proof(loaded, arguments, folder, processes).rows()
        seconds, proven = time.monotonic() - start, all(row.holds for row in rows)
        record = {
            "proven": proven,
            "arguments": arguments,
            "processes": processes,
            "tolerances": {"losses": LOSS_TOLERANCE, "parameters": PARAMETER_TOLERANCE},
            "rows": [asdict(row) for row in rows],
            "seconds": seconds,
            "versions": environment.versions(),
            "host": environment.host(),
            "source": environment.git_state(),
        }
        write_json(folder / RECEIPT, record)
        lines = [
            [one.run, "equal" if one.batches else "DIFFER", f"{one.losses:.1e}", f"{one.parameters:.1e}", exact]
            for one, exact in ((row, _EXACT[row.exact]) for row in rows)
        ]
        verdict = "the same run each time" if proven else "NOT the same run"
        header = ["beside one process", "batches", "losses", "parameters", ""]
        say("\n".join(["", *aligned(header, lines), f"{verdict}, in {duration(seconds)}; {shown(folder / RECEIPT)}"]))
    return 0 if proven else 1


class _Proof:
    def __init__(self, loaded: LoadedConfig, arguments: Sequence[str], folder: Path, processes: int) -> None:
        self._loaded, self._arguments, self._folder, self._devices = loaded, list(arguments), folder, processes
        self._steps = loaded.experiment.total_steps
        self._starts = 0

    def rows(self) -> list[ComparedRun]:
        """Everything that is to be proven."""
        counts = [2**power for power in range(self._devices.bit_length())]
        for count in counts:
            self._train(f"on_{count}", count)
        rows = [self._row(f"on_{count}", f"{count} processes") for count in counts[1:]]
        # between two checkpoints: what came after the first of them is trained again
        period = self._loaded.experiment.checkpoints.period
        middle = 2 * period + max(1, period // 2)
        self._train(_KILLED, 2, signal.SIGKILL, signal_step=middle)
        self._train(_KILLED, 2)
        comparison = compare(self._loaded, self._folder / "on_2", self._folder / _KILLED, self._steps)
        rows.append(self._row(_KILLED, "2 processes, one killed, started again", not comparison.differences))
        for name, (first, then) in _MOVED.items():
            self._train(name, first, signal.SIGTERM, signal_step=self._steps // 2)
            self._train(name, then)
            rows.append(self._row(name, f"begun on {first}, continued on {then}"))
        return rows

    def _train(self, name: str, count: int, signum: int | None = None, signal_step: int = 0) -> None:
        """One start on `count` processes; at the update `signal_step`, the last process gets the signal `signum`."""
        signal_text = f", signal {signum} at step {signal_step}" if signal_step else ""
        say(f"{name}: {count} process{'es' if count > 1 else ''}{signal_text}")
        self._starts += 1
        experiment, *overrides = self._arguments
        group = [f"--processes={count}", *([f"--coordinator=127.0.0.1:{_free_port()}"] if count > 1 else [])]
        variables = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(self._devices // count)}
        outputs = [self._folder / _OUTPUT / f"{self._starts:02d}_{name}_{process}.log" for process in range(count)]
        with ExitStack() as stack:
            runs = []
            for process, output in enumerate(outputs):
                member = [*group, *([f"--process={process}"] if count > 1 else [])]
                command = train_command(experiment, overrides, self._folder / name, *member)
                runs.append(stack.enter_context(WatchedRun(command, output, variables)))
            signalled_at = None
            while not all(run.ended for run in runs):
                for run in runs:
                    run.listen(0.01)
                reached = any((step or 0) >= signal_step for step in runs[-1].steps["step"])
                if signal_step and signalled_at is None and reached:
                    signalled_at = time.monotonic()
                    runs[-1].send(signum or 0)
                if signalled_at is not None and time.monotonic() > signalled_at + _END_SECONDS:
                    raise UserError(f"{name}: {duration(_END_SECONDS)} after signal {signum} not all processes ended.")
            if signal_step and signalled_at is None:
                message = f"{name} ended before its step {signal_step}:"
                raise UserError("\n  ".join([message, *last_lines(outputs[-1], 15)]))
            codes = [run.exit_code for run in runs]
        expected = [0] * count
        if signum == signal.SIGTERM:
            expected = [128 + signum] * count
        elif signum == signal.SIGKILL:  # the others end with an error: their own, or from JAX's service
            expected = [code if code else 1 for code in codes[:-1]] + [-signum]
        if codes != expected:
            index = next(place for place, code in enumerate(codes) if code != expected[place])
            raise UserError(ended_message(f"{name}: process {index}", codes[index], outputs[index]))

    def _row(self, name: str, label: str, exact: bool | None = None) -> ComparedRun:
        single, other = RunDirectory(self._folder / "on_1"), RunDirectory(self._folder / name)
        batches = single.batches.read_bytes() == other.batches.read_bytes()
        arrays = [read_checkpoint(run.checkpoints / str(self._steps))["params"] for run in (single, other)]
        return ComparedRun(label, batches, _loss_difference(single, other), _relative_l2(*arrays), exact)


def _loss_difference(single: RunDirectory, other: RunDirectory) -> float:
    """The largest relative difference of the losses of training and validation; infinite where records are missing."""
    losses = [
        {
            (line["step"], line["split"], line.get("task")): line["loss"]
            for line in read_jsonl(run.metrics_jsonl)
            if line.get("loss") is not None
        }
        for run in (single, other)
    ]
    if losses[0].keys() != losses[1].keys():
        return float("inf")
    return max(abs(losses[1][key] / loss - 1) for key, loss in losses[0].items())


def _relative_l2(a: Arrays, b: Arrays) -> float:
    if a.keys() != b.keys():
        return float("inf")
    squares = sum(float(np.sum(np.square(a[name] - b[name], dtype=np.float64))) for name in a)
    return float(np.sqrt(squares / sum(float(np.sum(np.square(array, dtype=np.float64))) for array in a.values())))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
