"""The data process as a child of this one. No TensorFlow here.

The first message has the entries of `sys.path`. Each of the others is a request: the name of a call (`worker.Calls`)
and its arguments. Each request has one answer, in order.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import last_lines
from t5xpg.base.paths import PACKAGE

Arrays = dict[str, np.ndarray]

_TAIL_LINES = 20
_PATIENCE = 30.0  # seconds of waiting for an answer before the state of the process is looked at
# variables that must be set before the first import in the data process
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # TensorFlow takes all the memory of a GPU that it sees
    "JAX_PLATFORMS": "cpu",  # seqio imports JAX, which would open the accelerator
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",  # log errors only
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
FILES = "files"  # the array of a saved position that describes the source files; the data process compares it


def shard_prefix(shard: int) -> str:
    """The beginning of the names of one virtual shard's arrays in a saved position."""
    return f"shard_{shard:05d}-"


class DataProcessError(UserError):
    """The data process has ended or failed. The message holds its last lines: a traceback from here adds nothing."""


class DataProcess:
    """One data process and the connection to it. `request` may be called from several threads. environment: variables
    added to those of this process. log: for its output; None: a temporary file."""

    def __init__(self, environment: Mapping[str, str], log: Path | None = None) -> None:
        self._output: BinaryIO = tempfile.TemporaryFile() if log is None else _open_log(log)  # noqa: SIM115
        self._connection, worker_end = Pipe()
        paths = filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")])
        self._lock = threading.Lock()
        self._closed = False
        with worker_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "t5xpg.data.stream.worker", str(worker_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env={**os.environ, **_ENVIRONMENT, **environment, "PYTHONPATH": os.pathsep.join(paths)},
                pass_fds=[worker_end.fileno()],
                process_group=0,  # Ctrl-C in the terminal does not reach it, not even while it starts
            )
        self.pid = self._process.pid
        with contextlib.suppress(OSError):  # where it has died already, the first request raises
            self._connection.send([entry for entry in sys.path if entry])

    def request(self, call: str, **values: Any) -> dict[str, Any]:
        """The answer to a call. UserError for a mistake of the user, DataProcessError if the process failed."""
        with self._lock:
            self._raise_if_closed()
            try:
                self._connection.send((call, values))
                while not self._connection.poll(_PATIENCE):
                    self._report_if_stopped()
                reply: dict[str, Any] = self._connection.recv()
            except (OSError, EOFError):
                self._raise_if_closed()
                raise DataProcessError(self._end_message()) from None
            except BaseException:  # Ctrl-C in the middle of a message: what follows is no message
                self._shut_down()
                raise
        if reply.get("error") == "user":
            raise UserError(reply["text"])
        if "error" in reply:
            raise DataProcessError(f"The data process failed: {reply['text']}\n{reply['detail']}")
        return reply

    def call(self, number: int, method: str, **values: Any) -> Any:
        """The result of a method of the stream or evaluator of this number, in the data process."""
        return self.request("call_opened", opened=number, method=method, **values)["result"]

    def _report_if_stopped(self) -> None:
        """Print a line if the process was stopped by a signal, as far as the system says."""
        with contextlib.suppress(OSError):  # another system than Linux
            if Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].startswith("T"):
                line = f"\nwaiting for the data process, which was stopped; let it go on: kill -CONT {self.pid}"
                print(line, file=sys.stderr, flush=True)

    def hang_up(self) -> None:
        """Close the connection: the process ends, and a request that waits fails."""
        self._closed = True
        self._shut_down()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)  # unlike `close`, it ends a wait in another thread

    def wait(self) -> None:
        """Wait until the process ends, after `hang_up`; kill it after 10 seconds."""
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._connection.close()
        self._output.close()

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise DataProcessError("The data process has been ended.")

    def _end_message(self) -> str:
        """Exit code or signal, what to do, and the last lines that it printed."""
        event = "has closed its connection"
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=5)
            signal = f"was ended by signal {-code}" + (" (out of memory?)" if code == -9 else "")
            event = signal if code < 0 else f"has ended with exit code {code}"
        lines = last_lines(self._output, _TAIL_LINES)
        last = "\n  ".join(["Its last lines:", *lines]) if lines else "It printed nothing."
        return (
            f"The data process (python -m t5xpg.data.stream.worker, process {self.pid}) {event}. "
            f"Give the same command again: training goes on from its last checkpoint. {last}"
        )


def _open_log(log: Path) -> BinaryIO:
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("w+b")
