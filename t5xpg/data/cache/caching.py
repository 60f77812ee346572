"""Caching of tasks, once each. Imports no TensorFlow: a data process (`worker`) does that.

A cache is the folder `<cache folder>/<task>` in SeqIO's own format, for `use_cached=True`, with `t5xpg_identity.json`:
the definition of the task that it was made from, and the digests of its files. A cache that was made from another
definition than the task has now is never used, and is replaced only on request.
"""

import contextlib
import errno
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base import files, locks
from t5xpg.base.errors import UserError
from t5xpg.base.paths import require_no_pattern
from t5xpg.base.progress import Progress
from t5xpg.data.cache import digest_memory, record
from t5xpg.data.cache.definition import package_digests
from t5xpg.data.cache.record import COMPLETED, IDENTITY, MissingTextError, Record
from t5xpg.data.cache.runners import LOCAL, resolve_runner
from t5xpg.data.data_process import DataProcess, DataProcessError
from t5xpg.data.tasks.task_names import cache_command

__all__ = ["COMPLETED", "MissingTextError", "cache_task", "checked_record", "resolve_runner"]

WORKER = "t5xpg.data.cache.worker"
_NAME = re.compile(r"\w+(\.\w+)*(:\w+(\.\w+)*)*")


def cache_task(
    task: str,
    *,
    cache_dir: Path,
    data_dir: Path,
    runner: str = LOCAL,
    beam_options: Sequence[str] = (),
    staging: str | None = None,
    force: bool = False,
    module_import: Sequence[str] = (),
    only_missing: bool = False,
    compare_only: bool = False,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Cache a task, or each task of a mixture, below `cache_dir` unless its cache is there.

    runner, beam_options, staging: see `runners` and `beam.cache_tasks`. module_import: modules that register tasks.
    force: makes existing caches again. log: gets one line per task. only_missing: also accepts caches that others made
    with SeqIO, in any of its cache folders, and skips tasks that cannot be cached. compare_only: caches nothing;
    existing caches are compared with the present definitions of their tasks.

    Returns the `definition` of the task whose cache was made or found; for a mixture, or a task that reads another's
    cache, definitions by task; {} if compare_only finds a cache missing. A cache appears when it is whole; the
    process's output is kept in `<cache_dir>/<task>.log`. Of two processes that cache one task, the second waits.

    Raises UserError for an unknown task, missing text (MissingTextError for that of an export), nothing to cache, a
    process that failed, no room, and for a cache that is damaged or was made from another definition of the task or
    with other versions of libraries. SeqIO's own cache is not compared, with a warning."""
    _check_names(task, cache_dir)
    request: dict[str, Any] = {
        "task": task,
        "caches": os.path.abspath(cache_dir),
        "data_dir": os.path.abspath(data_dir),
        "module_import": list(module_import),
        "only_missing": only_missing,
        "runner": resolve_runner(runner, beam_options, staging),
        "beam_options": list(beam_options),
        "staging": staging,
        "force": force,
    }
    command = cache_command(task, module_import, force)
    remedy = f"Make room, or name a cache folder elsewhere (T5XPG_CACHE_DIR=…), and type: {command}"
    with files.room_for(f"the cache of {task}", cache_dir, remedy):
        cache_dir.mkdir(parents=True, exist_ok=True)
        for folder in {cache_dir, (cache_dir / task.replace(":", "/")).parent}:
            files.remove_abandoned(folder)
        plan = _update_caches(request, cache_dir, data_dir, compare_only, log)
    for entry in plan:
        log(f"{entry['task']} is cached{' already' if entry['up_to_date'] else ''}")
    definitions = {entry["task"]: entry["definition"] for entry in plan}
    answer: dict[str, Any] = definitions.get(task, definitions)
    return answer


def _update_caches(
    request: dict[str, Any], cache_dir: Path, data_dir: Path, compare_only: bool, log: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Make the caches that are missing. Returns the plan, an entry for each task; nothing if one is missing and
    `compare_only`."""
    task = request["task"]
    name = task.replace(":", "_")
    # names this process, so that `files.remove_abandoned` finds the folder
    prefix = files.temporary_prefix(f"{name}.caching")
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(".tmp", prefix, cache_dir, ignore_cleanup_errors=True)
        request["output"] = stack.enter_context(folder)
        output, kept_output = Path(request["output"], ".log"), cache_dir / f"{name}.log"
        process = stack.enter_context(_data_process(task, cache_dir, data_dir, output, kept_output))
        plan: list[dict[str, Any]] = process.request("plan", log, request=request)
        for entry in plan:
            if entry["note"]:
                log(f"warning: {entry['note']}")
        if compare_only and not all(entry["up_to_date"] for entry in plan):
            return []
        _lock(stack, plan, cache_dir, request["force"], log)
        if missing := [entry for entry in plan if not entry["up_to_date"]]:
            _move(output, kept_output)  # where it grows
            total = sum(entry["examples"] or 0 for entry in missing)
            with Progress(f"cache {task}", total or None, "documents") as progress:
                process.request("cache", progress.advance, request=request, plan=missing)
        for entry in plan:
            _put_in_place(entry, output.parent, cache_dir)
        return plan


@contextlib.contextmanager
def _data_process(task: str, cache_dir: Path, data_dir: Path, output: Path, kept_output: Path) -> Iterator[DataProcess]:
    """The data process, for the block. Raises UserError if it fails, and OSError if the disk is full."""
    process = DataProcess(WORKER, data_dir=data_dir, cache_dir=cache_dir, log=output)
    try:
        yield process
    except DataProcessError as error:
        if files.is_disk_full(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        _move(output, kept_output)
        raise UserError(f"{task} was not cached. {error}\nIts whole output is in {kept_output}.") from None
    finally:
        process.hang_up()
        process.wait()


def _move(output: Path, kept_output: Path) -> None:
    with contextlib.suppress(OSError):  # it has been moved, or keeps its place
        os.replace(output, kept_output)


def checked_record(
    folder: Path, export: Mapping[str, str], vocabulary: Mapping[str, Any], command: str
) -> Record | None:
    """The record of the cache of a task of the table, compared with all that decides such a cache, without TensorFlow;
    None without a cache, and for one that others made.

    export: the digests of the splits of its text. vocabulary: as JSON, without a path. command: what to type to make
    the cache again. Raises UserError where the cache is damaged or was made from something else.
    """
    cache_record = record.read(folder, command)
    if cache_record is None:
        return None
    then = cache_record.definition
    splits = {split: [{"sha256": sha256}] for split, sha256 in export.items()}
    features = {name: {**feature, "vocabulary": vocabulary} for name, feature in then["features"].items()}
    now = then | {"source": {**then["source"], "splits": splits}, "features": features}
    package = package_digests(functools.partial(digest_memory.digest, folder.parent))
    record.check(folder, cache_record, now, package, command)
    return cache_record


def _check_names(task: str, cache_dir: Path) -> None:
    if not _NAME.fullmatch(task):
        raise UserError(
            f"There is no task or mixture named {task!r}: names have letters, digits and underscores, and dots and "
            "colons inside."
        )
    require_no_pattern(cache_dir, "*?[]{}\\", "SeqIO", "T5XPG_CACHE_DIR=…")


def _lock(
    stack: contextlib.ExitStack,
    plan: Sequence[dict[str, Any]],
    cache_dir: Path,
    force: bool,
    log: Callable[[str], None],
) -> None:
    """Take the lock of each task to be cached, once others have stopped caching it; mark caches that they have made as
    up to date in the plan."""
    for entry in sorted(plan, key=lambda entry: str(entry["task"])):
        if entry["up_to_date"]:
            continue
        folder = cache_dir / entry["folder"]
        # "-" is in no name: `a:b` and `a_b` are two tasks
        lock = cache_dir / digest_memory.FOLDER / f"{entry['task'].replace(':', '-')}.lock"
        doing = f"caching {entry['task']} in {cache_dir}"
        stack.enter_context(locks.hold(lock, doing=doing, instead="", wait=log))
        made = None if force else record.read(folder)
        if made is not None and (made.definition, made.package) == (entry["definition"], entry["package"]):
            entry["up_to_date"] = True


def _put_in_place(entry: Mapping[str, Any], scratch: Path, cache_dir: Path) -> None:
    """Move a new cache from the scratch folder to its place, with its record."""
    if entry["up_to_date"]:
        return
    source, folder = scratch / entry["folder"], cache_dir / entry["folder"]
    names = sorted(path.name for path in source.iterdir() if path.is_file() and path.name != IDENTITY)
    sha256s = {name: files.sha256_of_file(source / name) for name in names if not name.startswith(".")}
    with files.directory_atomically(folder) as new:
        for path in source.iterdir():
            shutil.move(path, new / path.name)
        Record(entry["definition"], entry["package"], entry["versions"], sha256s).write(new)
