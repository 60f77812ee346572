"""Folders of the program: in a checkout, or beside an installed package and in the folder where it is started.

Folders in an object store (`s3://bucket/runs`) are worked on in mirrors: see `t5xpg.base.stores`.
"""

import os
import re
from pathlib import Path

from t5xpg.base.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]
_IS_CHECKOUT = (PACKAGE.parent / "pyproject.toml").is_file()
REPOSITORY = PACKAGE.parent if _IS_CHECKOUT else PACKAGE / "shipped"  # is read: gin/, experiments/
WORKSPACE = PACKAGE.parent if _IS_CHECKOUT else Path.cwd()  # is written
GIN = REPOSITORY / "gin"
EXPERIMENTS = WORKSPACE / "experiments"


def experiments() -> dict[str, Path]:
    """The folders of experiments by name: those of `WORKSPACE`, and those that came with the package."""
    return {path.name: path for root in (REPOSITORY / "experiments", EXPERIMENTS) for path in root.glob("*/")}


def data_directory() -> Path:
    """The folder of exported datasets: T5XPG_DATA_DIR, or `data` of `WORKSPACE`."""
    return local(os.environ.get("T5XPG_DATA_DIR") or str(WORKSPACE / "data"))


def cache_directory() -> Path:
    """The folder of SeqIO caches: T5XPG_CACHE_DIR, or `cache` of `WORKSPACE`."""
    return local(os.environ.get("T5XPG_CACHE_DIR") or str(WORKSPACE / "cache"))


def runs_directory() -> Path:
    """The folder of run directories: T5XPG_RUNS_DIR, or `runs` of `WORKSPACE`."""
    return local(os.environ.get("T5XPG_RUNS_DIR") or str(WORKSPACE / "runs"))


def recordings_directory() -> Path:
    """The folder of recorded batches: T5XPG_RECORDINGS_DIR, or `recordings` of `WORKSPACE`."""
    if "://" in (folder := os.environ.get("T5XPG_RECORDINGS_DIR", "")):
        raise UserError(f"T5XPG_RECORDINGS_DIR={folder}: recordings stay on this machine. Name a folder of it.")
    return Path(os.environ.get("T5XPG_RECORDINGS_DIR") or WORKSPACE / "recordings")


def user_cache() -> Path:
    """The user's cache folder: XDG_CACHE_HOME, or ~/.cache. Its subfolder `t5xpg` is ours."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)")


def local(name: str) -> Path:
    """A folder of this machine: the path that was typed, or the mirror of the folder of a store ("s3://bucket/runs").

    Raises UserError for an address with . or .. in it, which cannot name a mirror, and for bytes that are not UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UserError(f"{name} has a byte in it that is not UTF-8, which no record could hold. Rename it.") from None
    url = _URL.fullmatch(name.rstrip("/"))
    if url is None or url[1] == "file":
        return Path(name if url is None else url[2])
    parts = [part for part in url[2].split("/") if part]
    if {".", ".."} & set(parts):
        raise UserError(f"{name} has . or .. in it. Expected the address of a folder, such as s3://bucket/runs.")
    return _mirrors().joinpath(url[1], *parts)


def url_of(path: Path) -> str | None:
    """The address of which a folder is the mirror ("s3://bucket/runs/mine"); None if it is no mirror."""
    try:
        scheme, *inside = path.absolute().relative_to(_mirrors().absolute()).parts
    except ValueError:
        return None
    return f"{scheme}://{'/'.join(inside)}" if inside else None


def _mirrors() -> Path:
    return user_cache() / "t5xpg" / "stores"


def shown(path: Path) -> str:
    """A path for messages: relative to the working directory if it lies in it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def run_directory(name: str) -> Path:
    """A run directory as it was typed: a path, the address of one in a store, or a name in `runs_directory`."""
    return local(name) if os.sep in name else runs_directory() / local(name)


def require_no_pattern(path: Path, wildcards: str, library: str, options: str) -> None:
    """Raise UserError for a folder that a library takes for a pattern. options: what names another folder."""
    if found := sorted(set(wildcards) & set(str(path.absolute()))):
        raise UserError(
            f"The folder {path.absolute()} has {' and '.join(found)} in its name, which {library} takes for a pattern. "
            f"Name another folder: {options}"
        )


def require_path_for_orbax(path: Path) -> None:
    """Raise UserError for a folder whose checkpoints Orbax could not read: it looks for parts of them by patterns."""
    require_no_pattern(path, "*?[\\", "Orbax, which writes checkpoints,", "RUN=… or T5XPG_RUNS_DIR=…")
