"""Names of files that do not depend on where the data and cache folders lie. Without TensorFlow.

A saved position holds the names of open files. So that a run can go on after its data has been moved, files in the two
folders are opened by names relative to a descriptor of the folder, `/proc/self/fd/900/…`, where the system has these
names (Linux).
"""

import os
from collections.abc import Sequence
from pathlib import Path

from t5xpg.base.paths import cache_directory, data_directory

_DESCRIPTORS = Path("/proc/self/fd")
_FIRST_DESCRIPTOR = 900


def relocatable(paths: Sequence[str]) -> list[str]:
    """The names under which to open files; files outside the two folders keep their names."""
    descriptor_paths = {
        f"{folder}/": f"{_DESCRIPTORS}/{number}/" for number, folder in _folders() if _is_open(number, folder)
    }

    def name_of(path: str) -> str:
        folder = next((folder for folder in descriptor_paths if path.startswith(folder)), None)
        return path if folder is None else descriptor_paths[folder] + path.removeprefix(folder)

    return [name_of(str(path)) for path in paths]


def readable(text: str) -> str:
    """A message with the real names of files instead of those from `relocatable`."""
    for number, folder in _folders():
        text = text.replace(f"{_DESCRIPTORS}/{number}/", f"{folder}/")
    return text


def open_folders() -> None:
    """Open each existing folder under its descriptor, so that `relocatable` has names for the files in it."""
    for number, folder in _folders():
        if not folder.is_dir() or not _DESCRIPTORS.is_dir() or _is_open(number, folder):
            continue
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.dup2(descriptor, number, inheritable=False)
        except OSError:  # fewer descriptors are allowed: absolute names, then
            continue
        finally:
            os.close(descriptor)


def _folders() -> list[tuple[int, Path]]:
    return list(enumerate((data_directory().resolve(), cache_directory().resolve()), start=_FIRST_DESCRIPTOR))


def _is_open(number: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.stat(folder))
    except OSError:
        return False
