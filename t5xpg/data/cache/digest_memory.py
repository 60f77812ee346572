"""The digests of files that caches depend on, remembered in the cache folder, so that nothing is written elsewhere."""

import os
from collections.abc import Iterable
from pathlib import Path

from t5xpg.base import digests

FOLDER = ".t5xpg"  # in the cache folder; may be deleted


def digest(cache_dir: Path, path: Path) -> str:
    """The SHA-256 of a file in any folder."""
    sha256s = _digests(cache_dir, [str(path)])
    if str(path) not in sha256s:
        raise FileNotFoundError(f"{path} is not a file")
    return sha256s[str(path)]


def digests_of_cache(cache_dir: Path, folder: Path) -> dict[str, str]:
    """The digests of the files of a cache that others made."""
    names = [str(path) for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    return {Path(name).name: sha256 for name, sha256 in _digests(cache_dir, names).items()}


def _digests(cache_dir: Path, paths: Iterable[str]) -> dict[str, str]:
    names = {os.path.abspath(path).lstrip("/"): path for path in paths}
    sha256s = digests.digests(Path("/"), names, memory=cache_dir / FOLDER / "digests.json")
    return {names[name]: sha256 for name, sha256 in sha256s.items()}
