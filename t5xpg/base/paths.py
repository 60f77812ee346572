"""Where things lie: in a checkout, or beside an installed package and in the folder where the program is started."""

import os
from pathlib import Path

from t5xpg.base.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]
_IS_CHECKOUT = (PACKAGE.parent / "pyproject.toml").is_file()
REPOSITORY = PACKAGE.parent if _IS_CHECKOUT else PACKAGE / "shipped"  # what is read, with gin/ and experiments/
WORKSPACE = PACKAGE.parent if _IS_CHECKOUT else Path.cwd()  # what is written
GIN = REPOSITORY / "gin"
EXPERIMENTS = WORKSPACE / "experiments"


def experiments() -> dict[str, Path]:
    """The folders of experiments by name: those of `WORKSPACE`, and those that came with the package."""
    return {path.name: path for root in (REPOSITORY / "experiments", EXPERIMENTS) for path in root.glob("*/")}


def data_directory() -> Path:
    """The folder of exported datasets: T5XPG_DATA_DIR, or `data` of `WORKSPACE`."""
    return Path(os.environ.get("T5XPG_DATA_DIR") or WORKSPACE / "data")


def cache_directory() -> Path:
    """The folder of SeqIO caches: T5XPG_CACHE_DIR, or `cache` of `WORKSPACE`."""
    return Path(os.environ.get("T5XPG_CACHE_DIR") or WORKSPACE / "cache")


def runs_directory() -> Path:
    """The folder of run directories: T5XPG_RUNS_DIR, or `runs` of `WORKSPACE`."""
    return Path(os.environ.get("T5XPG_RUNS_DIR") or WORKSPACE / "runs")


def recordings_directory() -> Path:
    """The folder of recorded batches: T5XPG_RECORDINGS_DIR, or `recordings` of `WORKSPACE`."""
    return Path(os.environ.get("T5XPG_RECORDINGS_DIR") or WORKSPACE / "recordings")


def user_cache() -> Path:
    """The user's folder for what can be made again: XDG_CACHE_HOME, or ~/.cache; `t5xpg` in it is ours."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


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
