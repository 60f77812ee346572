"""The data process, which holds TensorFlow, and the connection to it: both ends. No TensorFlow here.

The first message has the entries of `sys.path`. Each of the others is a request: the name of a call and its
arguments. Each request has one answer, in order: ("result", a value), ("mistake", the call's UserError), or ("failure",
a text). Any number of messages ("report", arguments) come before the answer, while the call works.

    process = DataProcess("t5xpg.data.stream.worker")     # a module that calls `serve` if it is the main program
    process.request("describe", config=…)
"""

import contextlib
import faulthandler
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import last_lines
from t5xpg.data.relocatable_paths import readable

Arrays = dict[str, np.ndarray]
Report: TypeAlias = Callable[..., None]
Calls: TypeAlias = Mapping[str, Callable[..., Any]]

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
    """One data process and the connection to it. `request` may be called from several threads. module: its main
    program. data_dir, cache_dir: None for the folders of `base.paths`. log: for its output; None: a temporary file."""

    def __init__(
        self, module: str, *, data_dir: Path | None = None, cache_dir: Path | None = None, log: Path | None = None
    ) -> None:
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
        self._output: BinaryIO = tempfile.TemporaryFile() if log is None else log.open("w+b")  # noqa: SIM115
        self._connection, worker_end = Pipe()
        python_path = filter(None, [str(paths.PACKAGE.parent), os.environ.get("PYTHONPATH")])
        environment = _ENVIRONMENT | {
            "PYTHONPATH": os.pathsep.join(python_path),
            "T5XPG_DATA_DIR": str((data_dir or paths.data_directory()).resolve()),
            "T5XPG_CACHE_DIR": str((cache_dir or paths.cache_directory()).resolve()),
        }
        self._module = module
        self._lock = threading.Lock()
        self._closed = False
        with worker_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(worker_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=os.environ | environment,
                pass_fds=[worker_end.fileno()],
                process_group=0,  # Ctrl-C in the terminal does not reach it, not even while it starts
            )
        self.pid = self._process.pid
        with contextlib.suppress(OSError):  # where it has died already, the first request raises
            self._connection.send([entry for entry in sys.path if entry])

    def request(self, call: str, report: Report | None = None, **values: Any) -> Any:
        """The result of a call. report: gets what the call reports. Raises the call's UserError for a mistake of the
        user, DataProcessError if the process failed."""
        with self._lock:
            self._raise_if_closed()
            try:
                with contextlib.suppress(OSError):  # `_receive` says how it ended
                    self._connection.send((call, values))
                kind, value = self._receive()
                while kind == "report":
                    if report is not None:
                        report(*value)
                    kind, value = self._receive()
            except DataProcessError:
                raise
            except BaseException:  # Ctrl-C in the middle of a message: what follows is no message
                self._shut_down()
                raise
        if kind == "mistake":
            raise value
        if kind == "failure":
            raise DataProcessError(f"The data process failed: {value}. {self._last_lines()}")
        return value

    def call(self, number: int, method: str, **values: Any) -> Any:
        """The result of a method of the stream or evaluator of this number, in the data process."""
        return self.request("call_opened", opened=number, method=method, **values)

    def _receive(self) -> tuple[str, Any]:
        try:
            while not self._connection.poll(_PATIENCE):
                self._report_if_stopped()
            message: tuple[str, Any] = self._connection.recv()
        except (OSError, EOFError):
            self._raise_if_closed()
            raise DataProcessError(self._end_message()) from None
        return message

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
        return (
            f"The data process (python -m {self._module}, process {self.pid}) {event}. Give the same command again: a "
            f"training goes on from its last checkpoint. {self._last_lines()}"
        )

    def _last_lines(self) -> str:
        lines = last_lines(self._output, _TAIL_LINES)
        return "\n  ".join(["Its last lines:", *lines]) if lines else "It printed nothing."


def serve(start: Callable[[Report], Calls]) -> None:
    """The main program of a data process: answer requests until the other side closes. The process ignores SIGINT and
    SIGTERM. start: imports libraries and returns the calls; gets the function by which they report."""
    # This process ends with its connection. If all processes of a job are stopped at once, the trainer still needs it
    # to save the position of the data.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    folder = None
    with contextlib.suppress(OSError):  # without the folder, TensorFlow says what it cannot do
        # TensorFlow's AutoGraph leaves the source of each function that it converts
        folder = tempfile.tempdir = tempfile.mkdtemp(prefix="t5xpg-data-process-")
    connection: Connection = Connection(int(sys.argv[1]))
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(connection, requests, folder), daemon=True).start()
    sys.path += [entry for entry in requests.get() if entry not in sys.path]
    answer(requests.get, connection, start)


def answer(receive: Callable[[], Any], connection: Connection, start: Callable[[Report], Calls]) -> None:
    """Send the answer to each request that `receive` returns."""

    def send(kind: str, value: Any) -> None:
        with contextlib.suppress(ConnectionError):  # `_read_requests` ends the process
            connection.send((kind, value))

    calls: Calls = {}
    failure = None
    try:
        calls = start(lambda *arguments: send("report", arguments))
    except Exception as error:  # TensorFlow or a task cannot be imported: the answer to every request
        failure = _failure(error)
    while True:
        name, values = receive()
        reply = failure
        if reply is None:
            try:
                reply = ("result", calls[name](**values))
            except Exception as error:
                reply = _failure(error)
        send(*reply)


def _failure(error: Exception) -> tuple[str, Any]:
    """An error as a message: a mistake of the user, damaged data, or a fault of the program, with its traceback in the
    log."""
    if isinstance(error, UserError):
        error.args = (readable(str(error)),)
        return "mistake", error
    tensorflow = sys.modules.get("tensorflow")  # absent if its import is the error
    if tensorflow is not None and hasattr(tensorflow, "errors") and isinstance(error, tensorflow.errors.OpError):
        return "mistake", UserError(readable(f"The data cannot be read: {_short_message(error.message)}"))
    with contextlib.suppress(OSError):  # on a full disk, the log may have no room
        traceback.print_exception(error)
        sys.stderr.flush()
    return "failure", f"{type(error).__name__}: {error}"


def _short_message(message: str) -> str:
    """The first line of a TensorFlow error without names of nodes and iterators; of an assertion, only its message."""
    lines = [re.sub(r"^\{\{.*?\}\}\s*", "", line) for line in message.strip().splitlines()]
    text = next(filter(None, lines), "no reason was given")
    text = re.sub(r"^Error in user-defined function passed to .*?Iterator::Root\S*: ", "", text)
    asserted = re.fullmatch(r"assertion failed: \[(.*)\]", text)
    return asserted.group(1).replace("] [", " ").replace('\\"', '"') if asserted else text


def _read_requests(connection: Connection, requests: queue.SimpleQueue[Any], folder: str | None) -> None:
    """Put requests into the queue. When the other side closes, remove the folder and end the process, whatever
    it is doing."""
    try:
        while True:
            requests.put(connection.recv())
    except (EOFError, OSError):
        if folder is not None:
            with contextlib.suppress(OSError):  # another program in this process ends the threads that write there
                os.execvp("rm", ["rm", "-rf", folder])
        os._exit(0)
    except BaseException:  # this thread alone would end, and the other side wait for ever
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
