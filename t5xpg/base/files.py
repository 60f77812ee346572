"""Writing files and folders so that an interruption leaves the earlier ones whole."""

import abc
import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from t5xpg.base.errors import UserError, first_line

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LONGEST_TAIL = 1 << 14  # bytes that `last_lines` reads
_SHOWN = 40  # characters of a wrong value in a message
_TEMPORARY, _REPLACED = ".tmp", ".old"  # endings of names
_ABANDONED = re.compile(r"\.(?P<name>.+)\.(?P<host>\w*)-(?P<process>\d+)\.\w+(?P<kind>\.tmp|\.old)")


class Closing(abc.ABC):
    """A context manager that closes itself."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release what the object holds; called at the end of the `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def write_atomically(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` for writing bytes; renamed to `path` when the block ends without an error.

    On an error (a full disk, Ctrl-C) the temporary file is removed and `path` is as it was. mode: the permissions, less
    those of the umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = _temporary(path, _TEMPORARY)
    handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # writing to a full disk does not say where
        raise


@contextlib.contextmanager
def directory_atomically(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside `path`; it takes the place of `path` when the block ends without error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent)
    temporary = _temporary(path, _TEMPORARY)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            (old := _temporary(path, _REPLACED)).mkdir()
            try:
                os.replace(path, old / path.name)
                os.replace(temporary, path)
            except BaseException:
                if (old / path.name).exists() and not path.exists():
                    os.replace(old / path.name, path)  # interrupted again, `remove_abandoned` does it
                shutil.rmtree(old, ignore_errors=True)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, whole or not at all. The copy can be read and written by no more users than the file."""
    mode = source.stat().st_mode & 0o666 | 0o600
    with write_atomically(target, mode) as copy, source.open("rb") as file:
        shutil.copyfileobj(file, copy)


def read_text(path: Path) -> str:
    """The text of a file. Raises UserError if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}). Save it as UTF-8.") from None


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all. A lone surrogate, which UTF-8 cannot encode, is written as an escape,
    which JSON reads as what it was."""
    with write_atomically(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def write_texts(texts: Mapping[Path, str]) -> None:
    """`write_text` of several files: none takes its place before all are written."""
    for folder in {path.parent for path in texts}:
        remove_abandoned(folder)
    with contextlib.ExitStack() as stack:
        for path, text in texts.items():
            file = stack.enter_context(write_atomically(path))
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """`value` as indented JSON, as `write_json` writes it."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    return json.loads(path.read_text(encoding="utf-8-sig"))


def checked(value: Any, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a JSON object by their types. Raises ValueError for one that is missing or of another type."""
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    for name, kind in kinds.items():
        field = value.get(name, ...)
        is_number = isinstance(field, int)
        if not isinstance(field, kind) or isinstance(field, bool) or (is_number and not 0 <= field < 1 << 63):
            raise ValueError(f"{name} is {'missing' if field is ... else repr(str(field)[:_SHOWN])}")
    return {name: value[name] for name in kinds}


def json_object_of(path: Path, contents: str = "") -> Mapping[str, Any]:
    """The object in a JSON file of another program; an empty one if the file is missing or holds another value.

    contents: what the file says, for the message. Raises UserError for a file that is not JSON.
    """
    try:
        value = read_json(path) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}{f', which says {contents},' if contents else ''} is not JSON ({error}).") from None
    return value if isinstance(value, Mapping) else {}


def json_object_if_any(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one if it is missing or cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        value = read_json(path)
        return value if isinstance(value, dict) else {}
    return {}


def last_lines(log: Path | BinaryIO, count: int) -> list[str]:
    """The last lines of a log (a path or an open file), which may be long; none if it cannot be read."""
    with contextlib.suppress(OSError), log.open("rb") if isinstance(log, Path) else contextlib.nullcontext(log) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_TAIL))
        return file.read().decode("utf-8", errors="replace").splitlines()[-count:]
    return []


def size_text(size: float) -> str:
    """A number of bytes for people: "12.3 MB"; below 0.1 MB "12.3 kB"."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


def is_disk_full(error: BaseException) -> bool:
    """True for the error of a full disk, an exhausted quota, or a file of the largest size."""
    # shutil, and libraries that are not written in Python, say it in their message alone
    texts = {os.strerror(number) for number in DISK_FULL}
    return getattr(error, "errno", None) in DISK_FULL or any(text in str(error) for text in texts)


@contextlib.contextmanager
def room_for(what: str, folder: Path, remedy: str) -> Iterator[None]:
    """Raise UserError if the disk of `folder` is full. what: what is being written. remedy: what to do, a sentence."""
    try:
        yield
    except Exception as error:  # libraries have their own
        if isinstance(error, UserError) or not is_disk_full(error):
            raise
        free = ""
        with contextlib.suppress(OSError):
            free = f"; {shutil.disk_usage(folder).free / 2**20:,.0f} MiB free"
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(
            f"There is no room for {what} in {folder} ({reason}{free}). What was there before is as it was. {remedy}"
        ) from error


def temporary_prefix(name: str) -> str:
    """The beginning of the names of temporary files for `name`: it names this machine and process."""
    return f".{name}.{_host()}-{os.getpid()}."


def _temporary(path: Path, ending: str) -> Path:
    """A new name beside `path`."""
    return path.with_name(f"{temporary_prefix(path.name)}{uuid.uuid4().hex}{ending}")


def remove_abandoned(folder: Path) -> list[str]:
    """Remove temporary files and folders that killed processes of this machine left in `folder`; returns their names.

    A folder that was moved aside, and never replaced, is put back.
    """
    removed = []
    for path in sorted(folder.glob(".*")) if folder.is_dir() else []:
        match = _ABANDONED.fullmatch(path.name)
        if match is None or match["host"] != _host() or _is_running(int(match["process"])):
            continue
        target = folder / match["name"]
        if match["kind"] == _REPLACED and not target.exists() and (path / match["name"]).exists():
            os.replace(path / match["name"], target)
        remove(path, ignore_errors=True)
        removed.append(path.name)
    return removed


def remove(path: Path, *, ignore_errors: bool = False) -> None:
    """Remove a file, a link or a whole folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=ignore_errors)
    else:
        path.unlink(missing_ok=True)


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", platform.node())


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:  # PermissionError: another user's
        return not isinstance(error, ProcessLookupError)
    return True


def sha256_of_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
