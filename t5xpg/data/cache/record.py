"""The record of a cache, `t5xpg_identity.json` beside SeqIO's files: what it was made from, and what it holds.

A cache is used only where it was made from what the task is now; `differences` says which part is another.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.machinery
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base import digests
from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, write_json
from t5xpg.data.tasks.task_names import cache_command

IDENTITY = "t5xpg_identity.json"
COMPLETED = "COMPLETED"  # SeqIO's own mark
CONTAINER = "tfrecord"  # the format of SeqIO's caches that is written here
# What writes or reads a cache, by the names of their packages on the registry.
PACKAGES = {
    "seqio": ("seqio",),
    "t5": ("t5",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "beam": ("apache-beam",),
}
_SHOWN = 8  # differences in a message
_LONGEST = 60  # characters of a value in a message


class MissingTextError(UserError):
    """Tasks of the table whose exports are not there; `datasets` are those to export."""

    def __init__(self, message: str, datasets: Sequence[str]) -> None:
        super().__init__(message)
        self.datasets = tuple(datasets)


@dataclass(frozen=True)
class Record:
    """What a cache was made from.

    definition: `task_definition.definition_of` the task; it is the cache's identity in the records of runs. code:
    `task_definition.code_of` the task; files: the SHA-256 of each of the cache's files. These two are None in caches of
    versions that did not keep them. versions: of the libraries that made it.
    """

    definition: dict[str, Any]
    versions: dict[str, str]
    code: dict[str, str] | None = None
    files: dict[str, str] | None = None
    container: str = CONTAINER

    def write(self, folder: Path) -> None:
        """Write the record into a cache's folder."""
        write_json(folder / IDENTITY, vars(self))


def read(folder: Path, command: str | None = None) -> Record | None:
    """The record in a task's cache; None where there is no cache, or one that this program did not make.

    Raises UserError where there is one that cannot be read. command: what to type to make the cache again.
    """
    if not (folder / COMPLETED).is_file() or not (folder / IDENTITY).is_file():
        return None
    try:
        value = read_json(folder / IDENTITY)
        container = value.get("container", CONTAINER)
        record = Record(value["definition"], value["versions"], value.get("code"), value.get("files"), container)
        if not isinstance(record.definition, dict) or not isinstance(record.definition["task"], str):
            raise ValueError("it names no task")
        for one in (record.versions, record.code or {}, record.files or {}):
            if not isinstance(one, dict) or not all(isinstance(text, str) for text in one.values()):
                raise ValueError("it is not one of this program")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{folder / IDENTITY}, which says what this cache was made from, cannot be read ({str(error)[:_LONGEST]}). "
            f"To make the cache again, type: {command or cache_command(folder.name, force=True)}"
        ) from None
    return record


def check_files(folder: Path, record: Record, command: str) -> None:
    """Raise UserError, naming files, where a cache's files are not those that were written. command: what to type."""
    digests.check(
        folder,
        record.files or {},
        f"The cache of {record.definition['task']} is not as it was made",
        f"To make it again, type: {command}",
    )


def versions() -> dict[str, str]:
    """The versions of the libraries that write and read caches here."""
    found = {}
    for name, packages in PACKAGES.items():
        for package in packages:
            try:
                found[name] = importlib.metadata.version(package)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def other_versions(record: Record, now: Mapping[str, str]) -> list[str]:
    """The libraries whose version is another than when the cache was made: "seqio 0.0.19, now 0.0.20"."""
    # records of earlier versions of this program call it by the name of its package
    then = {name.removeprefix("apache-"): version for name, version in record.versions.items()}
    return [
        f"{name} {then[name]}, now {version}" for name, version in now.items() if then.get(name, version) != version
    ]


def differences(
    record: Record, definition: Mapping[str, Any], code: Mapping[str, str], now: Mapping[str, str]
) -> list[str]:
    """Which parts of what a cache was made from are other ones now, a phrase each; empty where none is.

    The code of a library whose version is another one is left out: there a sample of the examples tells.
    """
    other = {change.split()[0] for change in other_versions(record, now)}
    found = []
    if record.container != CONTAINER:
        found.append(f"the format of SeqIO's files: {_text(record.container)}, now {CONTAINER}")
    for path, then, value in _leaves(record.definition, definition, ()):
        if path[:2] == ("source", "splits") and path[-1] == "bytes":
            continue  # the sha256 beside it differs, too
        library = str(path[-2]).partition(".")[0] if len(path) > 1 and path[-1] == "source_sha256" else ""
        if library not in other:
            found.append(_phrase(path, then, value))
    functions = {step["function"] for step in definition["preprocessors"]}
    for name in sorted({*record.code, *code} if record.code is not None else ()):
        then, value = (record.code or {}).get(name), code.get(name)
        if then != value and name not in functions:  # the functions' own code is part of the definition
            found.append(f"the code {name}: {_text(then)}, now {_text(value)}")
    return found


def text_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Which splits of a definition's source have another text, as `differences` says it."""
    leaves = _leaves(then, now, ("source", "splits"))
    return [_phrase(path, one, other) for path, one, other in leaves if path[-1] != "bytes"]


def refuse(folder: Path, found: Sequence[str], command: str) -> UserError:
    """The error for a cache that was made from something else. command: what to type."""
    more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return UserError(
        f"The cache in {folder} was made from something else than the task is now:\n"
        + "\n".join(f"  {phrase}" for phrase in found[:_SHOWN])
        + f"{more}\nTo make it again from what there is now, type: {command}"
    )


def _leaves(then: Any, now: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """The places where two JSON values differ. A function's name stands in the path to what differs below it."""
    if then == now:
        return
    if isinstance(then, dict) and isinstance(now, dict):
        function = then.get("function")
        if function is not None and function == now.get("function"):
            path = (*path, str(function))
        elif "function" in then or "function" in now:
            yield path, then, now
            return
        for key in sorted({*then, *now}):
            yield from _leaves(then.get(key), now.get(key), (*path, key))
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for number, (one, other) in enumerate(zip(then, now, strict=True)):
            yield from _leaves(one, other, path if len(then) == 1 else (*path, str(number + 1)))
    else:
        yield path, then, now


def _phrase(path: tuple[str, ...], then: Any, now: Any) -> str:
    match path:
        case ("task",):
            what = "the task"
        case ("source", "kind"):
            what = "the kind of source"
        case ("source", "splits", split) if then is None or now is None:
            return f"the split {split}: " + ("none, now there is one" if then is None else "there was one, now none")
        case ("source", "splits", split) if isinstance(then, list) and isinstance(now, list):
            return f"the text of the split {split}: {len(then)} files, now {len(now)}"
        case ("source", "splits", split, *_, function, "source_sha256"):
            what = f"the code {function} that reads the split {split}"
        case ("source", "splits", split, *file):
            what = f"the text of the split {split}" + (f", file {file[0]}" if len(file) > 1 else "")
        case ("preprocessors",):
            lists = [", ".join(step["function"] for step in steps) for steps in (then, now)]
            return f"the preprocessors before the placeholder: {lists[0]}, now {lists[1]}"
        case ("preprocessors", *_, function, "source_sha256"):
            what = f"the code of the preprocessor {function}"
        case ("preprocessors", *steps, "arguments"):
            what = f"the arguments of the preprocessor {steps[-1]}"
        case ("preprocessors", *steps) if "arguments" in steps:
            place = steps.index("arguments")
            # positional ones have numbers; the last of the list are those by name
            what = f"the argument {'.'.join(steps[place + 1 :])} of the preprocessor {steps[place - 1]}"
        case ("features", feature, "vocabulary", *field):
            what = f"the vocabulary of {feature}" + (f" ({'.'.join(field)})" if field else "")
        case ("features", feature, *field):
            what = f"the feature {feature}" + (f" ({'.'.join(field)})" if field else "")
        case _:
            what = ".".join(path)
    return f"{what}: {_text(then)}, now {_text(now)}"


def _text(value: Any) -> str:
    """A value of a definition as messages show it."""
    if value is None:
        return "none"
    if isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef"):
        return digests.short(value)
    if isinstance(value, dict) and "function" in value:
        return str(value["function"])
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


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
        "versions": versions(),
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
    found += [] if seen["versions"] == versions() else ["versions of libraries"]
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
