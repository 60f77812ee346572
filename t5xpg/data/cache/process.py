"""The caching process, `worker`, from the side of the program that starts it."""

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.files import DISK_FULL, last_lines
from t5xpg.base.paths import PACKAGE
from t5xpg.data.cache.record import MissingTextError

WORKER = "t5xpg.data.cache.worker"
_LOG_LINES = 15


class CacheProcess:
    """A running `worker`, which `close` ends. Its output goes into the request's "output", later into `log_file`."""

    def __init__(self, request: Mapping[str, Any], log_file: Path, environment: Mapping[str, str]) -> None:
        self._task, self._log_file, self._output = request["task"], log_file, Path(request["output"]) / ".log"
        reading, writing = os.pipe()
        self._reports = os.fdopen(reading, encoding="utf-8")
        with os.fdopen(writing, "w"), self._output.open("wb") as output:
            # Its own session: Ctrl-C reaches this process alone, which then ends the child.
            self._child = subprocess.Popen(
                [sys.executable, "-m", WORKER, str(writing)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[writing],
                start_new_session=True,
                env=environment,
            )
        # its standard input stays open as long as this process lives: the child ends when it closes
        self._send(request)

    def plan(self, log: Callable[[str], None]) -> list[dict[str, Any]]:
        """The plan, an entry for each task. log: gets lines."""
        for message in self._messages():
            if "plan" in message:
                plan: list[dict[str, Any]] = message["plan"]
                return plan
            log(message["log"])
        raise self._failure(self._child.wait())

    def cache(self, tasks: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Cache tasks of the plan; yields the progress, {"count": documents since the last message}."""
        self._keep_log()
        self._send({"cache": list(tasks)})
        yield from self._messages()
        if status := self._child.wait():
            raise self._failure(status)

    def close(self) -> None:
        """End the process."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.kill()
        self._child.wait()
        self._reports.close()

    def _send(self, value: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its exit code says more
            self._child.stdin.write(json.dumps(value).encode("utf-8") + b"\n")
            self._child.stdin.flush()

    def _messages(self) -> Iterator[dict[str, Any]]:
        for line in self._reports:
            message = json.loads(line)
            if message.get("datasets"):
                raise MissingTextError(message["user_error"], message["datasets"])
            if "user_error" in message:
                raise UserError(message["user_error"])
            if message.get("no_room"):
                raise _disk_full_error()
            yield message

    def _keep_log(self) -> None:
        """Move the output so far beside the caches, where it stays and grows."""
        with contextlib.suppress(OSError):  # it keeps its place
            os.replace(self._output, self._log_file)
            self._output = self._log_file

    def _failure(self, status: int) -> Exception:
        self._keep_log()
        lines = last_lines(self._output, _LOG_LINES)
        if says_no_room("\n".join(lines)):
            return _disk_full_error()
        failure = f"Caching {self._task} failed (exit code {status})"
        if status < 0:
            failure = f"The process that cached {self._task} was killed by signal {-status}"
            failure += ", as the system does where memory runs out" if status == -9 else ""
        return UserError("\n  ".join([f"{failure}. The last lines of {self._output}:", *lines]))


def _disk_full_error() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def environment_of_worker(cache_dir: Path, data_dir: Path) -> dict[str, str]:
    """The environment variables of the worker process, which knows tasks."""
    folders = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "T5XPG_DATA_DIR": str(data_dir.resolve()),
        "T5XPG_CACHE_DIR": str(cache_dir.resolve()),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(folders),
    }


def says_no_room(text: str) -> bool:
    """True for a message of Python, TensorFlow or Beam about a full disk."""
    return any(os.strerror(number) in text for number in DISK_FULL)
