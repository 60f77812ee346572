"""Locks on folders: one process at a time; the message for others names the process that holds it.

A lock is a file that a process holds with flock, so that it ends with the process: the lock of a dead process is free.
The record of its holder in the file serves only the message.
"""

import contextlib
import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from t5xpg.base.errors import UserError

_POLL_SECONDS = 0.2


@contextlib.contextmanager
def hold(path: Path, *, doing: str, instead: str, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock file `path` for the block.

    doing: what the holder does, for the messages of others ("training in runs/x"). instead: what they can do instead.
    wait: called once with a line that names the holder, after which this process waits for it; None to raise UserError
    at once. On a file system without locks, nothing is locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        has_waited = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    fcntl.flock(file, fcntl.LOCK_UN)  # else two that try would wait for each other
                    time.sleep(0.01)
                    continue  # nobody holds it: another process is just asking `is_held`
                if wait is None:
                    raise UserError(f"{_holder(file)} {instead}") from error
            except OSError:  # this file system has no locks
                break
            if not has_waited:
                wait(f"{_holder(file)} Waiting for it …")
                has_waited = True
            time.sleep(_POLL_SECONDS)
        record = {"process": os.getpid(), "host": platform.node(), "doing": doing, "since": time.time()}
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            file.seek(0)
            file.truncate(0)
            file.write(json.dumps(record))
            file.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                file.truncate(0)


def is_held(path: Path) -> bool:
    """True if a process holds the lock file, which need not exist; nothing is written."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a file system without locks
        pass
    return False


def _holder(file: IO[str]) -> str:
    """A sentence that names the process which holds the lock, if its record can be read."""
    try:
        file.seek(0)
        record = json.loads(file.read())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["since"]))
        where = "" if record["host"] == platform.node() else f" on {record['host']}"
        return f"Process {record['process']}{where} is {record['doing']}, since {since}."
    except (ValueError, KeyError, TypeError, OSError):
        return f"Another process holds {file.name}."
