"""What was seen when caches were last found good, so that a start where nothing changed needs no look by TensorFlow.

The process that knows tasks (`cache_worker`) says what its answer came from: the files that it looked at, how patterns
of files were answered, the modules that register tasks with every file and every variable of the environment that they
read, the versions of libraries. Where all of that is as it was, the answer is the same. What a module draws from
elsewhere (the clock, a network) is not seen.

It lies in `.t5xpg` of the cache folder, and may be deleted: the next start looks again.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.machinery
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg import digests
from t5xpg.data import cache_record
from t5xpg.files import read_json, write_json

FOLDER = ".t5xpg"
_FORMAT = 1


def digest(cache_dir: Path, path: Path) -> str:
    """The SHA-256 of a file that lies anywhere, remembered in the cache folder: folders of others stay as they are."""
    found = _digests(cache_dir, [str(path)])
    if str(path) not in found:
        raise FileNotFoundError(f"{path} is not a file")
    return found[str(path)]


def inputs(
    cache_dir: Path,
    *,
    files: Iterable[Path],
    patterns: Iterable[str],
    modules: Sequence[str],
    variables: Mapping[str, str | None],
) -> dict[str, Any]:
    """What an answer came from, as `unchanged` compares it."""
    return {
        "versions": cache_record.versions(),
        "modules": {name: _origin(name) for name in modules},
        "files": _digests(cache_dir, sorted({str(path) for path in files})),
        "listings": {pattern: _listing(pattern) for pattern in patterns},
        "variables": dict(variables),
    }


def remember(
    cache_dir: Path,
    question: Mapping[str, Any],
    seen: Mapping[str, Any],
    caches: Sequence[Mapping[str, Any]],
    answer: Any,
) -> None:
    """Keep an answer. caches: those that were found good, {"folder", "files": their digests, "ours"}."""
    known = {"format": _FORMAT, "question": question, "seen": seen, "caches": caches, "answer": answer}
    with contextlib.suppress(OSError):  # looked at again next time
        write_json(_path(cache_dir, question), known)


def unchanged(cache_dir: Path, question: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """What `remember` kept for a question, where everything is as it was; None otherwise.

    The caches themselves are not looked at. `environment` is that of the process that would be asked.
    """
    try:
        known = read_json(_path(cache_dir, question))
        if known["format"] != _FORMAT or known["question"] != json.loads(json.dumps(question)):
            return None
        seen, caches = known["seen"], known["caches"]
        if not all(isinstance(cache["folder"], str) and isinstance(cache["files"], dict) for cache in caches):
            return None
        return known if not changes(cache_dir, seen, environment) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def changes(cache_dir: Path, seen: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    """What is no longer as it was seen, by name."""
    found = [name for name, origin in seen["modules"].items() if _origin(name) != origin]
    found += [] if seen["versions"] == cache_record.versions() else ["versions of libraries"]
    found += [pattern for pattern, paths in seen["listings"].items() if _listing(pattern) != paths]
    found += [name for name, value in seen["variables"].items() if environment.get(name) != value]
    now = _digests(cache_dir, seen["files"])
    return found + [name for name, sha256 in seen["files"].items() if now.get(name) != sha256]


def of_caches(cache_dir: Path, folder: Path) -> dict[str, str]:
    """The digests of the files of a cache that others made, remembered in our cache folder."""
    names = [str(path) for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    return {Path(name).name: sha256 for name, sha256 in _digests(cache_dir, names).items()}


def _digests(cache_dir: Path, paths: Iterable[str]) -> dict[str, str]:
    names = {os.path.abspath(path).lstrip("/"): path for path in paths}
    found = digests.digests(Path("/"), names, memory=cache_dir / FOLDER / "digests.json")
    return {names[name]: sha256 for name, sha256 in found.items()}


def _path(cache_dir: Path, question: Mapping[str, Any]) -> Path:
    name = hashlib.sha256(json.dumps(question, sort_keys=True).encode("utf-8")).hexdigest()[:16]
    return cache_dir / FOLDER / f"known-{name}.json"


def _origin(module: str) -> str | None:
    """The file of a top-level module, as the process would find it that runs from this folder; nothing is imported."""
    spec = importlib.machinery.PathFinder.find_spec(module.partition(".")[0], [os.getcwd(), *sys.path])
    return spec.origin if spec is not None else None


def _listing(pattern: str) -> list[str]:
    return sorted(glob.glob(pattern))
