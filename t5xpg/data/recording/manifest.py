"""The manifest of a recording: the recorded streams, their source, and their files. Without TensorFlow.

A recording is a folder, written by `make record`: manifest.json, the models of vocabularies, and for each stream the
file of `t5xpg.data.recording.format`. Streams are "train", "validation" and, for each task of a mixture,
"validation-1" and so on.
"""

import dataclasses
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base import digests
from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, sha256_of_file, write_json
from t5xpg.base.paths import shown
from t5xpg.data.recording.format import stream_path

MANIFEST = "manifest.json"
STREAMS = ("train", "validation")
_TASK_STREAM = re.compile(r"validation-[1-9][0-9]{0,4}")
_KIND = "recorded batches"  # manifests of other things have the same file name
_FORMAT = 1
_MAX_BYTES = 1 << 24


@dataclass(frozen=True)
class StreamRecord:
    """One recorded stream. identity: as in a live stream's position. limit: the `max_batches` of its config. ended:
    whether the live stream had no more batches. description: a `client.TaskDescription` as JSON."""

    identity: Mapping[str, Any]
    limit: int | None
    batches: int
    ended: bool
    description: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide the batches: all of the identity but the files, which may be elsewhere."""
        return {name: value for name, value in self.identity.items() if name != "files"}


@dataclass(frozen=True)
class Recording:
    """The contents of manifest.json. source: what `experiment.recipe` knew of the data. files: "bytes" and "sha256" of
    each. gin: the overrides that were typed."""

    experiment: str  # as it is typed
    streams: Mapping[str, StreamRecord]
    source: Mapping[str, Any]
    versions: Mapping[str, str | None]
    files: Mapping[str, Mapping[str, Any]]
    gin: str

    def to_json(self) -> dict[str, Any]:
        """The contents of manifest.json."""
        return {"kind": _KIND, "format": _FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Recording":
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for any other value."""
        if value["format"] != _FORMAT:
            raise ValueError(f"format {value['format']!r} instead of {_FORMAT}")
        names = [*STREAMS, *(name for name in value["streams"] if name not in STREAMS)]
        if unknown := [name for name in names if name not in STREAMS and not _TASK_STREAM.fullmatch(name)]:
            raise ValueError(f"streams {', '.join(unknown)}")
        streams = {name: StreamRecord(**value["streams"][name]) for name in names}
        for name, stream in streams.items():
            numbers = (stream.batches, 0 if stream.limit is None else stream.limit)
            has_types = isinstance(stream.identity["mixture_or_task_name"], str) and isinstance(
                stream.description, dict
            )
            if not has_types or not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError(f"streams.{name}")
        if set(value["source"]) != {"data", "cache", "manifest"} or not isinstance(value["source"]["data"], dict):
            raise ValueError("source")
        needed = {stream_path(Path(), name).name for name in names}
        if missing := needed - set(value["files"]):
            raise ValueError(f"files lacks {', '.join(sorted(missing))}")
        for name, file in value["files"].items():
            if Path(name).name != name or type(file["bytes"]) is not int or not isinstance(file["sha256"], str):
                raise ValueError(f"files: {name}")
        experiment, gin = str(value["experiment"]), str(value["gin"])
        return cls(experiment, streams, value["source"], dict(value["versions"]), value["files"], gin)

    def command(self, folder: Path, steps: int | str | None = None) -> str:
        """The command to type to record into `folder` anew. steps: a number, or "n"; None for the present number."""
        steps = self.streams["train"].batches if steps is None else steps
        name, output = shlex.quote(self.experiment), shlex.quote(shown(folder))
        gin = f" GIN={shlex.quote(self.gin)}" if self.gin else ""
        return f"make record EXP={name} STEPS={steps}{gin} OUTPUT={output} FORCE=1"

    def damaged(self, folder: Path, what: str) -> UserError:
        """The error for damaged files in `folder`. what: the damage, a sentence without its full stop."""
        return UserError(f"{what}. {self.remedy(folder)}")

    def remedy(self, folder: Path) -> str:
        """A sentence that says what to do about damaged files in `folder`."""
        return f"Copy the recording again, or make it anew: {self.command(folder)}"

    def check_files(self, folder: Path) -> None:
        """Raise UserError if files are missing or of another size; with T5XPG_VERIFY=1, of another SHA-256."""
        for name, file in self.files.items():
            path = folder / name
            if not path.is_file():
                raise self.damaged(folder, f"{path} is missing")
            if path.stat().st_size != file["bytes"]:
                raise self.damaged(folder, f"{path} has {path.stat().st_size:,} bytes instead of {file['bytes']:,}")
        if digests.verifying():
            expected = {name: file["sha256"] for name, file in self.files.items()}
            digests.check(folder, expected, f"The recording {shown(folder)} is damaged", self.remedy(folder))


def write_recording(folder: Path, recording: Recording) -> None:
    """Write the manifest."""
    write_json(folder / MANIFEST, recording.to_json())


def read_recording(folder: Path) -> Recording:
    """The manifest of a recording. Raises UserError if it is missing or cannot be read."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(
            f"{folder} is no recording: it has no {MANIFEST}. "
            f"`make record EXP=… STEPS=n OUTPUT={shlex.quote(str(folder))}` writes one."
        )
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"{path.stat().st_size:,} bytes")
        value = read_json(path)
        if isinstance(value, dict) and value.get("kind") == _KIND:
            return Recording.from_json(value)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read as the manifest of a recording of this version ({type(error).__name__}: {error}). "
            "Copy the recording again, or delete the folder and record again: make record EXP=… STEPS=n OUTPUT=…"
        ) from None
    raise UserError(f"{folder} is no recording: its {MANIFEST} is of something else. Name another folder.")


def task_stream(number: int) -> str:
    """The name of the validation stream of a mixture's task, counted from 0."""
    return f"validation-{number + 1}"


def files_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file in a folder, as the manifest holds them."""
    return {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)} for path in sorted(folder.iterdir())
    }


def model_path(folder: Path, stream: str) -> Path:
    """The path of the vocabulary's model of a recorded stream, if its vocabulary has one."""
    return folder / f"{stream}.model"
