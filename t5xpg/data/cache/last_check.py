"""The result of the last check of a cache, kept in the cache folder: while nothing changes, no TensorFlow is needed.
The folder `.t5xpg` may be deleted: the next check then starts the process that knows tasks."""

import contextlib
import glob
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base import digests
from t5xpg.base.files import read_json, write_json
from t5xpg.data.cache.record import versions

FOLDER = ".t5xpg"
_FORMAT = 2


def digest(cache_dir: Path, path: Path) -> str:
    """The SHA-256 of a file in any folder, remembered in the cache folder, so that nothing is written elsewhere."""
    sha256s = _digests(cache_dir, [str(path)])
    if str(path) not in sha256s:
        raise FileNotFoundError(f"{path} is not a file")
    return sha256s[str(path)]


def digests_of_cache(cache_dir: Path, folder: Path) -> dict[str, str]:
    """The digests of the files of a cache that others made, remembered in our cache folder."""
    names = [str(path) for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    return {Path(name).name: sha256 for name, sha256 in _digests(cache_dir, names).items()}


def snapshot(
    cache_dir: Path,
    environment: Mapping[str, str],
    files: Iterable[str],
    patterns: Iterable[str],
    variables: Iterable[str],
) -> dict[str, dict[str, Any]]:
    """The present state of what an answer depends on: digests of files, matches of patterns, variables, versions."""
    return {
        "files": _digests(cache_dir, sorted(files)),
        "patterns": {pattern: sorted(glob.glob(pattern)) for pattern in patterns},
        "variables": {name: environment.get(name) for name in variables},
        "versions": versions(),
    }


def changes(cache_dir: Path, before: Mapping[str, Mapping[str, Any]], environment: Mapping[str, str]) -> list[str]:
    """The names of files, patterns, variables and libraries that have changed since an earlier `snapshot`."""
    now = snapshot(cache_dir, environment, before["files"], before["patterns"], before["variables"])
    pairs = [(before[part], now[part]) for part in before]
    return [name for old, new in pairs for name in {**old, **new} if old.get(name) != new.get(name)]


def remember(
    cache_dir: Path,
    question: Mapping[str, Any],
    before: Mapping[str, Any],
    caches: Sequence[Mapping[str, Any]],
    answer: Any,
) -> None:
    """Keep an answer. caches: the caches that passed, {"task", "folder", "files": their digests, "ours"}."""
    check = {"format": _FORMAT, "question": question, "seen": before, "caches": caches, "answer": answer}
    with contextlib.suppress(OSError):  # without the answer, the next check looks at everything again
        write_json(_path(cache_dir, question), check)


def recall(cache_dir: Path, question: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The check that `remember` kept for a question, if its snapshot is unchanged (caches are not checked); or None."""
    try:
        check = read_json(_path(cache_dir, question))
        if check["format"] != _FORMAT or check["question"] != json.loads(json.dumps(question)):
            return None
        if not all(isinstance(cache["folder"], str) and isinstance(cache["files"], dict) for cache in check["caches"]):
            return None
        return check if not changes(cache_dir, check["seen"], environment) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _digests(cache_dir: Path, paths: Iterable[str]) -> dict[str, str]:
    names = {os.path.abspath(path).lstrip("/"): path for path in paths}
    sha256s = digests.digests(Path("/"), names, memory=cache_dir / FOLDER / "digests.json")
    return {names[name]: sha256 for name, sha256 in sha256s.items()}


def _path(cache_dir: Path, question: Mapping[str, Any]) -> Path:
    name = hashlib.sha256(json.dumps(question, sort_keys=True).encode("utf-8")).hexdigest()[:16]
    return cache_dir / FOLDER / f"known-{name}.json"
