"""A file of JSON lines that takes hours: lines that have been written stay, and the next start continues after them.

The lines are in `<name>.partial` until all are there. Its first line records what they are made from. Only whole
batches count: the other rows of a batch may decide the last bits of a row, so an unfinished batch is made again.
"""

import contextlib
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from t5xpg.base.errors import UserError
from t5xpg.base.files import write_atomically
from t5xpg.run.directory import differing, short
from t5xpg.run.records import to_json

SUFFIX = ".partial"
_HEADER = "t5xpg_predictions"
_FORMAT = 1
_SHOWN = 5


@contextlib.contextmanager
def open_partial(target: Path, identity: Mapping[str, Any], batch_size: int) -> Iterator[tuple[BinaryIO, int]]:
    """Open the lines of `target` that an earlier process has written, to add more; with their number, in whole batches.

    At the end of the block they become `target`, whole or not at all; after an error they stay for the next start.
    identity: what determines every line, as JSON. Raises UserError where the existing file was made from something
    else, is not ours, or is being written by another process.
    """
    path = target.with_name(target.name + SUFFIX)
    path.parent.mkdir(parents=True, exist_ok=True)
    header = (json.dumps({_HEADER: _FORMAT, **to_json(identity)}, ensure_ascii=False) + "\n").encode()
    with _locked(path) as file:
        done = _seek_resume_point(path, file, header, batch_size)
        if done:
            print(f"{path}: {done:,} records are done, going on behind them", file=sys.stderr)
        try:
            yield file, done
            file.flush()
            file.seek(len(header))
            with write_atomically(target) as whole:
                shutil.copyfileobj(file, whole)
            path.unlink()
        except BaseException as error:
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(path)  # writing to a full disk does not say where
            with contextlib.suppress(OSError):
                file.flush()
            if path.exists() and path.stat().st_size <= len(header):
                path.unlink()
            elif isinstance(error, KeyboardInterrupt | SystemExit):
                print(f"{path} keeps what is done: the same command goes on behind it", file=sys.stderr)
            raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Open the file for reading and writing, for this process alone; make it where it is missing."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is no regular file, and predictions are kept there until all are made. Remove it.")
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f"Another process writes {path}. Wait for it, or name another OUTPUT.") from error
            except OSError:  # this file system has no locks
                pass
            if not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                continue  # finished and removed by another process meanwhile
            yield file
            return


def _seek_resume_point(path: Path, file: BinaryIO, header: bytes, batch_size: int) -> int:
    """Go to the end of the lines of whole batches; returns their number. Raises UserError where the header differs."""
    found = file.readline()
    if found != header:
        if not header.startswith(found):  # else its first write was cut off
            raise UserError(_other(path, found, header))
        file.seek(0)
        file.truncate()
        file.write(header)
        return 0
    end, count, done = len(header), 0, 0
    keep = end
    for line in file:
        if not line.endswith(b"\n"):
            break
        end, count = end + len(line), count + 1
        if count % batch_size == 0:
            keep, done = end, count
    file.seek(keep)
    file.truncate()
    return done


def _other(path: Path, found: bytes, header: bytes) -> str:
    """The message about a file with another header."""
    try:
        theirs = json.loads(found)
        is_ours = isinstance(theirs, dict) and _HEADER in theirs
    except (ValueError, RecursionError):
        is_ours = False
    if not is_ours:
        return f"{path} is in the way: predictions are kept there until all are made, and it holds something else."
    differences = list(differing(theirs, json.loads(header)).items())
    lines = [f"  {name}: {short(old)} there, {short(new)} now" for name, (old, new) in differences[:_SHOWN]]
    more = [f"  and {len(differences) - _SHOWN} more"] if len(differences) > _SHOWN else []
    last = f"Set them back to go on, name another OUTPUT, or delete {path} to start over."
    return "\n".join([f"{path} holds the first predictions of another start:", *lines, *more, last])
