"""What the user's modules read while they are imported: on what their tasks may depend."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PASSING = ("/proc/", "/dev/", "/sys/")
_active: list[Watched] = []
_hooked: list[bool] = []


@dataclass
class Watched:
    """The files that were opened or imported, and the variables of the environment that were asked for."""

    files: set[Path] = field(default_factory=set)
    variables: dict[str, str | None] = field(default_factory=dict)


@contextmanager
def watching() -> Iterator[Watched]:
    """Note what the code of the block reads through Python."""
    watched = Watched()
    if not _hooked:  # it cannot be taken away again
        sys.addaudithook(_note)
        _hooked.append(True)
    before = set(sys.modules)
    environment = type(os.environ)
    get = environment.__getitem__

    def noted_get(self: Any, name: Any) -> Any:
        watched.variables[str(name)] = None
        value = get(self, name)
        watched.variables[str(name)] = value
        return value

    environment.__getitem__ = noted_get  # type: ignore[method-assign]
    _active.append(watched)
    try:
        yield watched
    finally:
        _active.pop()
        environment.__getitem__ = get  # type: ignore[method-assign]
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file:
                watched.files.add(Path(file))
        watched.files = {path for path in watched.files if path.is_file() and path.suffix != ".pyc"}


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _active:
        return
    path, mode = arguments[:2]
    if isinstance(mode, str) and set(mode) & set("wax"):
        return
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if isinstance(path, str | os.PathLike):
        name = os.path.abspath(path)
        if not name.startswith(_PASSING):
            _active[-1].files.add(Path(name))
