"""Resumable writing of a file of JSON lines, which may take hours: the next start continues after the written lines.

The lines are in `<name>.partial` until all are there. Its first line records what they are made from. Only whole
batches count: the other rows of a batch may decide the last bits of a row, so an unfinished batch is made again.
"""

import contextlib
import fcntl
import json
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


@contextlib.contextmanager
def open_partial(target: Path, identity: Mapping[str, Any], batch_size: int) -> Iterator[tuple[BinaryIO, int]]:
    """Yields the file of the lines of `target` that are written already, to append to, and their number, a multiple of
    the batch size.

    At the end of the block they become `target`, whole or not at all; after an error they stay for the next start.
    identity: what determines every line, as JSON. Raises UserError if the existing file was made from something else,
    is not ours, or is being written by another process.
    """
    path = target.with_name(target.name + SUFFIX)
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is no regular file, and predictions are kept there until all are made. Remove it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    header = (json.dumps({_HEADER: _FORMAT, **to_json(identity)}, ensure_ascii=False) + "\n").encode()
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"Another process writes {path}. Wait for it, or name another OUTPUT.") from error
        except OSError:  # this file system has no locks
            pass
        num_done = _keep_whole_batches(path, file, header, batch_size)
        if num_done:
            print(f"{path}: {num_done:,} records are done, going on behind them", file=sys.stderr)
        try:
            yield file, num_done
            file.flush()
            file.seek(len(header))
            with write_atomically(target) as output:
                shutil.copyfileobj(file, output)
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


def _keep_whole_batches(path: Path, file: BinaryIO, header: bytes, batch_size: int) -> int:
    """Cut off the lines behind the last whole batch; returns the number of lines. Raises UserError if the header
    differs."""
    file.seek(0)
    first_line = file.readline()
    if first_line != header:
        if not header.startswith(first_line):  # else its first write was cut off
            raise UserError(_other_header_message(path, first_line, header))
        file.truncate(0)
        file.write(header)
        return 0
    end, count = len(header), 0
    whole = end, count
    for line in file:
        if line.endswith(b"\n"):  # else it was cut off
            end, count = end + len(line), count + 1
            whole = (end, count) if count % batch_size == 0 else whole
    file.truncate(whole[0])
    return whole[1]


def _other_header_message(path: Path, first_line: bytes, header: bytes) -> str:
    """The message about a file with another header."""
    try:
        recorded = json.loads(first_line)
    except (ValueError, RecursionError):
        recorded = None
    if not isinstance(recorded, dict) or _HEADER not in recorded:
        return f"{path} is in the way: predictions are kept there until all are made, and it holds something else."
    differences = differing(recorded, json.loads(header)).items()
    lines = [f"  {name}: {short(old)} there, {short(new)} now" for name, (old, new) in differences]
    last = f"Set them back to go on, name another OUTPUT, or delete {path} to start over."
    return "\n".join([f"{path} holds the first predictions of another start:", *lines, last])
