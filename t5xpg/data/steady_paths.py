"""Names for data files that stay the same when the folders of data and caches are moved.

A saved position holds the names of the files that were open. Absolute ones would tie it to a place: a checkout that was
moved could not continue, and one that was copied would read the files of the other. So the pipelines read files below
the data and cache folders through two directory descriptors with fixed numbers: `/proc/self/fd/900/<dataset>/...`.
Where there is no such file system (macOS) the names are absolute, and data has to stay where it is.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import seqio

from t5xpg.data.providers import Provider, map_tasks
from t5xpg.paths import cache_directory, data_directory

_FIRST_DESCRIPTOR = 900
_DESCRIPTORS = Path("/proc/self/fd")


def with_steady_paths(provider: Provider) -> Provider:
    """The task or mixture, reading files below the data and cache folders by names that do not tell where these are."""
    _open_folders()
    return map_tasks(provider, _with_steady_paths)


def readable(text: str) -> str:
    """A message with the names that users know."""
    for number, folder in _folders().items():
        text = text.replace(f"{_DESCRIPTORS}/{number}/", f"{folder}/")
    return text


def _folders() -> dict[int, Path]:
    folders = (data_directory().resolve(), cache_directory().resolve())
    return dict(enumerate(folders, start=_FIRST_DESCRIPTOR))


def _open_folders() -> None:
    """Let each descriptor stand for its folder, where that is there and descriptors have names."""
    for number, folder in _folders().items():
        if not folder.is_dir() or not _DESCRIPTORS.is_dir() or _is_open(number, folder):
            continue
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.dup2(opened, number, inheritable=False)
        except OSError:  # fewer descriptors are allowed: absolute names, then
            continue
        finally:
            os.close(opened)


def _is_open(number: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.stat(folder))
    except OSError:
        return False


def _with_steady_paths(task: seqio.Task) -> seqio.Task:
    steady = copy.copy(task)
    steady._source = _steady(task.source)
    cached = task._get_cached_source
    steady._get_cached_source = lambda *arguments, **named: _steady(cached(*arguments, **named))
    return steady


def _steady(source: Any) -> Any:
    """The source, listing its files by steady names; sources of other kinds as they are."""
    if not isinstance(source, seqio.FileDataSource):
        return source
    steady = copy.copy(source)
    steady.list_shards = lambda split: _steady_names(source.list_shards(split))
    return steady


def _steady_names(names: Sequence[str]) -> list[str]:
    open_folders = {number: f"{folder}/" for number, folder in _folders().items() if _is_open(number, folder)}

    def steady(name: str) -> str:
        for number, folder in open_folders.items():
            if name.startswith(folder):
                return f"{_DESCRIPTORS}/{number}/{name[len(folder) :]}"
        return name

    return [steady(str(name)) for name in names]
