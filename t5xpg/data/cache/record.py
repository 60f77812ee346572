"""The record of a cache, `t5xpg_identity.json` beside SeqIO's files: the definition of the task that it was made from,
and the digests of its files. A cache is used only if that is the task's definition now, by `differences`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base import digests
from t5xpg.base.environment import version_of
from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, write_json
from t5xpg.data.tasks.task_names import cache_command

IDENTITY = "t5xpg_identity.json"
FORMAT = 2  # of the record, and of the definition in it
COMPLETED = "COMPLETED"  # SeqIO's own mark
# The libraries that write or read a cache, each with the names of its packages on the registry.
PACKAGES = {
    "seqio": ("seqio",),
    "t5": ("t5",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "beam": ("apache-beam",),
}
_MAX_SHOWN = 8  # differences in a message
_MAX_LENGTH = 60  # characters of a value in a message


class MissingTextError(UserError):
    """Exports that tasks of the table need are missing; `datasets` names the datasets to export."""

    def __init__(self, message: str, datasets: Sequence[str] = ()) -> None:  # without them, as pickle makes it
        super().__init__(message)
        self.datasets = tuple(datasets)


@dataclass(frozen=True)
class Record:
    """The origin of a cache: `definition_of` the task, `package_code`, versions; and the SHA-256 of its files."""

    definition: dict[str, Any]
    package: dict[str, str]
    versions: dict[str, str]
    files: dict[str, str]

    def write(self, folder: Path) -> None:
        """Write the record into a cache's folder."""
        write_json(folder / IDENTITY, {"format": FORMAT, **vars(self)})


def read(folder: Path, command: str | None = None) -> Record | None:
    """The record in a cache; None without a record. UserError if it cannot be read. command: remakes the cache."""
    if not (folder / COMPLETED).is_file() or not (folder / IDENTITY).is_file():
        return None
    remedy = f"To make the cache again, type: {command or cache_command(folder.name, force=True)}"
    try:
        value = read_json(folder / IDENTITY)
        if value.pop("format") != FORMAT:
            raise UserError(f"The cache in {folder} was made by another version of t5xpg. {remedy}")
        record = Record(**value)
        if not isinstance(record.definition, dict) or not isinstance(record.definition["task"], str):
            raise ValueError("it names no task")
        for texts in (record.package, record.versions, record.files):
            if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
                raise ValueError("it is not one of this program")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{folder / IDENTITY}, which says what this cache was made from, cannot be read "
            f"({str(error)[:_MAX_LENGTH]}). {remedy}"
        ) from None
    return record


def check(
    folder: Path, record: Record, definition: Mapping[str, Any], package: Mapping[str, str], command: str
) -> None:
    """Raise UserError if a cache's files are not those that were written, naming them, or if it was made from another
    definition or with other versions of libraries. command: what to type."""
    digests.check(
        folder,
        record.files,
        f"The cache of {record.definition['task']} is not as it was made",
        f"To make it again, type: {command}",
    )
    found = [*differences(record, definition, package), *other_versions(record, versions())]
    if found:
        more = [f"and {len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else []
        head = f"The cache in {folder} was made from something else than the task is now:"
        listed = "\n  ".join([head, *found[:_MAX_SHOWN], *more])
        raise UserError(f"{listed}\nTo make it again from what there is now, type: {command}")


def versions() -> dict[str, str]:
    """The versions of the libraries that write and read caches here."""
    return {name: version for name, packages in PACKAGES.items() if (version := version_of(*packages))}


def other_versions(record: Record, now: Mapping[str, str]) -> list[str]:
    """The libraries whose version has changed since the cache was made: "seqio 0.0.19, now 0.0.20"."""
    then = record.versions | {"beam": now.get("beam")}  # all its runners write the same files
    return [
        f"{name} {then[name]}, now {version}" for name, version in now.items() if then.get(name, version) != version
    ]


def differences(record: Record, definition: Mapping[str, Any], package: Mapping[str, str]) -> list[str]:
    """A phrase for each part of a definition that differs from that in a record. Of the user's modules, only those in
    both are compared (all if none is in both), as experiments may name different modules."""
    then, now = record.definition["code"], definition["code"]
    shared = then.keys() & now.keys() or {*then, *now}
    codes = ({name: code.get(name) for name in shared} for code in (then, now))
    leaves = _leaves(record.definition | {"code": {}}, {**definition, "code": {}}, ())
    # sizes are left out: where a file's size differs, its sha256 differs, too
    phrases = [_phrase(*leaf) for leaf in leaves if leaf[0][:2] != ("source", "splits") or leaf[0][-1] != "bytes"]
    return [*phrases, *_code_differences(*codes), *_code_differences(record.package, package)]


def _code_differences(then: Mapping[str, str | None], now: Mapping[str, str | None]) -> list[str]:
    """A phrase for each file or module whose digest differs, as in `differences`."""
    return [
        f"the code {name}: {_text(then.get(name))}, now {_text(now.get(name))}"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]


def _leaves(then: Any, now: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """The places where two JSON values differ, with both values. A path includes the names of functions on it."""
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
        for number, (old, new) in enumerate(zip(then, now, strict=True)):
            yield from _leaves(old, new, path if len(then) == 1 else (*path, str(number + 1)))
    else:
        yield path, then, now


def _phrase(path: tuple[str, ...], then: Any, now: Any) -> str:
    match path:
        case ("source", "splits", split, *file):
            what = f"the text of the split {split}" + (f", file {file[0]}" if len(file) > 1 else "")
        case ("preprocessors", *steps) if "arguments" in steps:
            place = steps.index("arguments")
            # positional arguments have numbers; the last item of the list holds the named ones
            what = f"the argument {'.'.join(steps[place + 1 :])} of the preprocessor {steps[place - 1]}"
        case ("features", feature, *field):
            what = f"the feature {feature}" + (f" ({'.'.join(field)})" if field else "")
        case _:
            what = f"the {'.'.join(path)}"
    return f"{what}: {_text(then)}, now {_text(now)}"


def _text(value: Any) -> str:
    """A value of a definition for messages."""
    if value is None:
        return "none"
    if isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef"):
        return digests.short(value)
    if isinstance(value, dict) and ("function" in value or "sha256" in value):
        return _text(value.get("function", value.get("sha256")))
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return ", ".join(map(_text, value))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
