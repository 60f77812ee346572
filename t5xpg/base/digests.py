"""SHA-256 of files, remembered: a file is read again only if its size or its times say that it may have changed.

The digests are kept in `.t5xpg_digests.json` in the folder of the files, unless another file is given. This only saves
reading: the file may be deleted, and where it cannot be written, every start reads all files.
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
MEMORY = ".t5xpg_digests.json"
_FORMAT = 1
# A file that changed less than this before it was read could change again with the same time: it is not remembered.
_SETTLED_NS = 2_000_000_000
_SHOWN = 4  # files that a message names
_DIGITS = 12  # of a digest in a message


def verifying() -> bool:
    """Whether all files are to be read, whatever digests are remembered."""
    return os.environ.get(VERIFY_VARIABLE, "") not in ("", "0")


def digests(folder: Path, names: Iterable[str], memory: Path | None = None) -> dict[str, str]:
    """Hex SHA-256 of files below `folder` by their names ("a.txt", "b/c.txt"); what is not a file is left out.

    memory: the file that keeps the digests, for a folder that is not ours to write in (default: in `folder`).
    Raises OSError where a file cannot be read.
    """
    memory = memory or folder / MEMORY
    known = _remembered(memory)
    believed = {} if verifying() else known
    found: dict[str, str] = {}
    learnt: dict[str, list[Any]] = {}
    for name in names:
        path = folder / name
        marks = _marks(path)
        if marks is None:
            continue
        if name in believed and believed[name][:-1] == marks:
            found[name] = believed[name][-1]
            continue
        found[name] = sha256_of_file(path)
        settled = time.time_ns() - marks[2] > _SETTLED_NS
        if settled and _marks(path) == marks and known.get(name) != [*marks, found[name]]:
            learnt[name] = [*marks, found[name]]
    if learnt:
        _remember(memory, folder, learnt)
    return found


def differences(folder: Path, expected: Mapping[str, str]) -> list[str]:
    """What is wrong with the files of `folder`, a phrase for each whose SHA-256 is not the expected one."""
    inside = [name for name in expected if is_inside(name)]
    try:
        found = digests(folder, inside)
    except OSError as error:
        return [f"{error.filename or folder} cannot be read ({error.strerror})"]
    return [
        _difference(folder / name, found.get(name), wanted, name in inside)
        for name, wanted in expected.items()
        if found.get(name) != wanted
    ]


def check(folder: Path, expected: Mapping[str, str], what: str, remedy: str) -> None:
    """Raise UserError where a file of `folder` is missing or has another SHA-256 than expected.

    what: the sentence that stands before the list of files ("The export mine is damaged"). remedy: what to type, a
    sentence.
    """
    wrong = differences(folder, expected)
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more files" if len(wrong) > _SHOWN else ""
        raise UserError(f"{what}: {'; '.join(wrong[:_SHOWN])}{more}. {remedy}")


def short(sha256: str) -> str:
    """A digest as messages show it."""
    return sha256[:_DIGITS] + "…" if len(sha256) > _DIGITS else sha256


def _difference(path: Path, found: str | None, wanted: str, inside: bool) -> str:
    if not inside:
        return f"{path} lies outside of its folder"
    if found is None:
        return f"{path} is {'not a file' if path.exists() else 'missing'}"
    if path.stat().st_size == 0:
        return f"{path} is empty"
    return f"{path} holds something else (sha256 {short(found)}, recorded {short(wanted)})"


def is_inside(name: str) -> bool:
    """Whether a name from a record leads to a place below the folder: the record may be from others."""
    path = PurePosixPath(name)
    return bool(name) and "\0" not in name and not path.is_absolute() and ".." not in path.parts


def _marks(path: Path) -> list[int] | None:
    """[size, mtime, ctime, inode], times in ns: if one differs, the file may have changed. None where there is none."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _remembered(memory: Path) -> dict[str, list[Any]]:
    """The entries of the file; none if it is missing or not ours: then all files are read."""
    recorded = json_object_if_any(memory)
    files = recorded.get("files")
    if recorded.get("format") != _FORMAT or not isinstance(files, dict):
        return {}
    entries = {name: entry for name, entry in files.items() if isinstance(entry, list)}
    return {name: entry for name, entry in entries.items() if len(entry) == 5 and isinstance(entry[-1], str)}


def _remember(memory: Path, folder: Path, learnt: Mapping[str, list[Any]]) -> None:
    # read again: another process may have added something in the meantime
    entries = {name: entry for name, entry in _remembered(memory).items() if _marks(folder / name) is not None}
    with contextlib.suppress(OSError):  # a folder of others, or a full disk: read again next time
        write_json(memory, {"format": _FORMAT, "files": {**entries, **learnt}})
