"""Compiled programs of earlier starts, kept in the user's cache folder: a run that starts again does not compile again.

JAX can look programs up in a folder, by a key of the program, its options, flags and versions, and it runs what it
finds. So every process gets its own folder, with copies of the kept programs whose digest is right. What it compiles is
kept once it is complete, whole or not at all. A damaged or shortened file is ignored.

Each kind of machine has its own programs, because code for one processor may not run on another. The last used ones are
kept, up to LIMIT bytes in all. `T5XPG_COMPILE_CACHE` names another folder; 0 keeps nothing.
"""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from t5xpg.base import paths, xla_flags
from t5xpg.base.files import remove_abandoned, temporary_prefix, write_atomically

VARIABLE = "T5XPG_COMPILE_CACHE"
LIMIT = 256 << 20
_DIGEST = 32  # bytes, in front of every kept program
_PROGRAM, _USED = "-cache", "-atime"  # how JAX names the files of a program and of its last use
_NEVER = (0).to_bytes(8, "little")


def folder() -> Path | None:
    """The folder of kept programs; None if none are or can be kept, or if JAX has been given a folder of its own."""
    setting = os.environ.get(VARIABLE, "")
    if setting == "0" or xla_flags.uses_onednn() or jax.config.values["jax_compilation_cache_dir"]:
        return None
    if setting:
        return Path(setting)
    return paths.user_cache() / "t5xpg" / "programs"


@contextlib.contextmanager
def kept_programs() -> Iterator[Callable[[], None]]:
    """For the block, JAX reads programs that were compiled before from the cache.

    Yields a function that keeps the programs compiled so far, as the end of the block does. If nothing can be written,
    nothing is kept, and no message is printed: no number depends on it.
    """
    root = folder()
    process_folder = None if root is None else _copy_programs(root)
    if root is None or process_folder is None:
        yield lambda: None
        return

    def keep() -> None:
        with contextlib.suppress(OSError):  # the disk may be full
            _store_programs(process_folder, root)

    options = {
        "jax_compilation_cache_dir": str(process_folder),
        "jax_compilation_cache_max_size": LIMIT,  # with a limit, JAX notes what it uses
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_enable_xla_caches": "none",  # they would make this process's folder part of the keys
    }
    previous = {name: jax.config.values[name] for name in options}
    try:
        _configure(options)
        yield keep
    finally:
        _configure(previous)
        keep()
        shutil.rmtree(process_folder, ignore_errors=True)


def _configure(options: dict[str, object]) -> None:
    for name, value in options.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()  # JAX decides once whether it has a cache


def _machine() -> str:
    """A digest of what programs depend on: processor, backend, XLA_FLAGS and versions of JAX."""
    facts = [platform.machine(), jax.default_backend(), os.environ.get("XLA_FLAGS", "")]
    facts += [importlib.metadata.version(name) for name in ("jax", "jaxlib")]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
        facts += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _copy_programs(root: Path) -> Path | None:
    """A new folder, as JAX expects one, with the undamaged programs of this machine; None if it cannot be made."""
    process_folder = None
    try:
        machine_folder = root / _machine()
        machine_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove_abandoned(machine_folder)
        process_folder = Path(tempfile.mkdtemp(prefix=temporary_prefix("programs"), suffix=".tmp", dir=machine_folder))
        for path in machine_folder.glob(f"*{_PROGRAM}"):
            data = path.read_bytes()
            if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
                path.unlink()
                continue
            (process_folder / path.name).write_bytes(data[_DIGEST:])
            _use_file(process_folder / path.name).write_bytes(_NEVER)
    except OSError:
        if process_folder is not None:  # its room is needed by others
            shutil.rmtree(process_folder, ignore_errors=True)
        return None
    return process_folder


def _store_programs(process_folder: Path, root: Path) -> None:
    """Keep the new programs of a process, note which ones were used, and delete those unused for longest, above LIMIT.

    process_folder: of `_copy_programs(root)`.
    """
    for path in process_folder.glob(f"*{_PROGRAM}"):
        kept_file = process_folder.parent / path.name
        if not _use_file(path).exists():
            continue  # it is still being written: JAX notes the use after that
        if not kept_file.exists():
            data = path.read_bytes()
            with write_atomically(kept_file) as file:
                file.write(hashlib.sha256(data).digest() + data)
        elif _use_file(path).read_bytes() != _NEVER:
            os.utime(kept_file)
    size = 0
    programs = [(path.stat(), path) for path in root.glob(f"*/*{_PROGRAM}")]
    for status, path in sorted(programs, key=lambda each: each[0].st_mtime, reverse=True):
        size += status.st_size
        if size > LIMIT:
            path.unlink(missing_ok=True)


def _use_file(program: Path) -> Path:
    return program.with_name(program.name.removesuffix(_PROGRAM) + _USED)
