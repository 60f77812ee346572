"""SHA-256 of files, remembered: a file is read again only if its size, times or inode have changed.

The digests are kept in `.t5xpg_digests.json` in the folder of the files, unless another file is given. This only saves
reading: the file may be deleted, and if it cannot be written, every start reads all files.
With T5XPG_VERIFY=1 in the environment (`--verify`, `make … VERIFY=1`), every file is read.
"""

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_if_any, sha256_of_file, write_json

VERIFY_VARIABLE = "T5XPG_VERIFY"
MEMORY = ".t5xpg_digests.json"  # the file that keeps the digests
_FORMAT = 1
# If a file changed less than this before it was read, it could change again with the same time: it is not remembered.
_SETTLED_NS = 2_000_000_000
_MAX_SHOWN = 4  # files that a message names
_DIGITS = 12  # of a digest in a message


def verifying() -> bool:
    """True if every file is to be read, whatever digests are remembered."""
    return os.environ.get(VERIFY_VARIABLE, "") not in ("", "0")


def digests(folder: Path, names: Iterable[str], memory: Path | None = None) -> dict[str, str]:
    """Hex SHA-256 of files below `folder` by their names ("a.txt", "b/c.txt"); names without a file are left out.

    memory: the file that keeps the digests (default: MEMORY in `folder`), for a folder that others write.
    Raises OSError if a file cannot be read.
    """
    memory = memory or folder / MEMORY
    entries = _read_memory(memory)
    valid_entries = {} if verifying() else entries
    sha256s: dict[str, str] = {}
    new_entries: dict[str, list[Any]] = {}
    for name in names:
        path = folder / name
        stamp = _stamp(path)
        if stamp is None:
            continue
        if name in valid_entries and valid_entries[name][:-1] == stamp:
            sha256s[name] = valid_entries[name][-1]
            continue
        sha256s[name] = sha256_of_file(path)
        is_settled = time.time_ns() - stamp[2] > _SETTLED_NS
        if is_settled and _stamp(path) == stamp and entries.get(name) != [*stamp, sha256s[name]]:
            new_entries[name] = [*stamp, sha256s[name]]
    if new_entries:
        _update_memory(memory, folder, new_entries)
    return sha256s


def differences(folder: Path, expected: Mapping[str, str]) -> list[str]:
    """A phrase for each file of `folder` whose SHA-256 is not the expected one: what is wrong with it."""
    inside_names = [name for name in expected if is_inside(name)]
    try:
        actual = digests(folder, inside_names)
    except OSError as error:
        return [f"{error.filename or folder} cannot be read ({error.strerror})"]
    return [
        _difference(folder / name, actual.get(name), sha256, name in inside_names)
        for name, sha256 in expected.items()
        if actual.get(name) != sha256
    ]


def check(folder: Path, expected: Mapping[str, str], what: str, remedy: str) -> None:
    """Raise UserError if a file of `folder` is missing or has another SHA-256 than expected.

    what: the words before the list of files ("The export mine is damaged"). remedy: what to type, a sentence.
    """
    problems = differences(folder, expected)
    if problems:
        more = f"; and {len(problems) - _MAX_SHOWN} more files" if len(problems) > _MAX_SHOWN else ""
        raise UserError(f"{what}: {'; '.join(problems[:_MAX_SHOWN])}{more}. {remedy}")


def short(sha256: str) -> str:
    """A digest as messages show it."""
    return sha256[:_DIGITS] + "…" if len(sha256) > _DIGITS else sha256


def _difference(path: Path, actual: str | None, expected: str, is_inside_folder: bool) -> str:
    if not is_inside_folder:
        return f"{path} lies outside of its folder"
    if actual is None:
        return f"{path} is {'not a file' if path.exists() else 'missing'}"
    if path.stat().st_size == 0:
        return f"{path} is empty"
    return f"{path} holds something else (sha256 {short(actual)}, recorded {short(expected)})"


def is_inside(name: str) -> bool:
    """True if a name leads to a place below its folder. Names in records from others may not."""
    path = PurePosixPath(name)
    return bool(name) and "\0" not in name and not path.is_absolute() and ".." not in path.parts


def _stamp(path: Path) -> list[int] | None:
    """[size, mtime, ctime, inode], times in ns: if one differs, the file may have changed. None without a file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _read_memory(memory: Path) -> dict[str, list[Any]]:
    """The entries of the file, {name: [*stamp, SHA-256]}; none if it is missing or of another format."""
    recorded = json_object_if_any(memory)
    files = recorded.get("files")
    if recorded.get("format") != _FORMAT or not isinstance(files, dict):
        return {}
    entries = {name: entry for name, entry in files.items() if isinstance(entry, list)}
    return {name: entry for name, entry in entries.items() if len(entry) == 5 and isinstance(entry[-1], str)}


def _update_memory(memory: Path, folder: Path, new_entries: Mapping[str, list[Any]]) -> None:
    # read again: another process may have added something in the meantime
    entries = {name: entry for name, entry in _read_memory(memory).items() if _stamp(folder / name) is not None}
    with contextlib.suppress(OSError):  # a folder of others, or a full disk: read again next time
        write_json(memory, {"format": _FORMAT, "files": {**entries, **new_entries}})
