"""Where things lie in a checkout."""

import os
from pathlib import Path

from t5xpg.base.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]
REPOSITORY = PACKAGE.parent
EXPERIMENTS = REPOSITORY / "experiments"
GIN = REPOSITORY / "gin"


def data_directory() -> Path:
    """The folder of exported datasets: T5XPG_DATA_DIR, or `data` of the checkout."""
    return Path(os.environ.get("T5XPG_DATA_DIR") or REPOSITORY / "data")


def cache_directory() -> Path:
    """The folder of SeqIO caches: T5XPG_CACHE_DIR, or `cache` of the checkout."""
    return Path(os.environ.get("T5XPG_CACHE_DIR") or REPOSITORY / "cache")


def runs_directory() -> Path:
    """The folder of run directories: T5XPG_RUNS_DIR, or `runs` of the checkout."""
    return Path(os.environ.get("T5XPG_RUNS_DIR") or REPOSITORY / "runs")


def recordings_directory() -> Path:
    """The folder of recorded batches: T5XPG_RECORDINGS_DIR, or `recordings` of the checkout."""
    return Path(os.environ.get("T5XPG_RECORDINGS_DIR") or REPOSITORY / "recordings")


def shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def run_directory(chosen: str) -> Path:
    """A run directory as it was typed: a path, or a name in `runs_directory`."""
    return Path(chosen) if os.sep in chosen else runs_directory() / chosen


def require_no_pattern(path: Path, wildcards: str, library: str, options: str) -> None:
    """Raise UserError for a folder that a library takes for a pattern of names. options: what names another one."""
    if wrong := sorted(set(wildcards) & set(str(path.absolute()))):
        raise UserError(
            f"The folder {path.absolute()} has {' and '.join(wrong)} in its name, which {library} takes for a pattern. "
            f"Name another folder: {options}"
        )
