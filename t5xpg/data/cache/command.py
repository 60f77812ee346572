"""Cache tasks, once. Imports no TensorFlow: that is the child process's (`worker`).

A cache is the folder `<cache folder>/<task>` in SeqIO's own format, which any SeqIO user reads with `use_cached=True`.
Beside SeqIO's files stands `t5xpg_identity.json`: what the cache was made from, and the digests of its files. A cache
that was made from something else than the task is now is never used, and never replaced without being told to.
"""

from __future__ import annotations

import contextlib
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
from t5xpg.data.cache import memory, record
from t5xpg.data.cache.definition import package_digests
from t5xpg.data.cache.process import CacheProcess, NoRoomError, environment_of_worker
from t5xpg.data.cache.record import COMPLETED, IDENTITY, MissingTextError, Record
from t5xpg.data.cache.runners import LOCAL, resolve_runner
from t5xpg.data.tasks.task_names import cache_command

__all__ = ["COMPLETED", "DEFAULT_RUNNER", "MissingTextError", "cache_task", "problem", "resolve_runner"]

DEFAULT_RUNNER = LOCAL
_NAME = re.compile(r"\w+(\.\w+)*(:\w+(\.\w+)*)*")


def cache_task(
    task: str,
    *,
    cache_dir: Path,
    data_dir: Path,
    runner: str = DEFAULT_RUNNER,
    beam_options: Sequence[str] = (),
    staging: str | None = None,
    force: bool = False,
    module_import: Sequence[str] = (),
    only_missing: bool = False,
    compare_only: bool = False,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Cache a task, or each task of a mixture, below `cache_dir` unless its cache is there.

    `runner` is "local", which caches on this machine (`local`), or any Apache Beam runner, with which SeqIO's script
    does (`beam`), `beam_options` being further options of its pipeline ("--name=value") and `staging` a folder, here or
    in a bucket, that its workers share with this machine where they do not share `cache_dir`: the cache is fetched from
    there. `module_import` names modules that register tasks. `force` caches again what is there. `log` gets a line a
    task. `only_missing` also takes caches that others made with SeqIO, in any of its cache folders, and leaves tasks
    alone that cannot be cached. `compare_only` caches nothing: the caches that are there are compared with what their
    tasks are now.

    Returns the definition of the task whose cache was made or found (`definition`), or several of them by task: of a
    mixture, and where the task reads the cache of another one.

    The same task and text give the same bytes, with Beam and without. A cache appears when it is whole. What the
    process printed is kept in `<cache_dir>/<task>.log`. Of two who cache one task, the second waits for the first.

    Raises UserError where the task is unknown, its text is missing (MissingTextError where that is an export), it has
    nothing to cache, the process failed or there is no room; and where a cache is there whose files are not as they
    were written, or that was made from something else than the task is now. A cache that other versions of the
    libraries made, or SeqIO by itself, is compared with the source in a sample, and that is said.
    """
    _check_names(task, cache_dir)
    runner = resolve_runner(runner, beam_options, staging)
    question = {
        "task": task,
        "caches": os.path.abspath(cache_dir),
        "data_dir": os.path.abspath(data_dir),
        "module_import": list(module_import),
        "only_missing": only_missing,
        "folder": os.getcwd(),
    }
    environment = environment_of_worker(cache_dir, data_dir)
    with _room(cache_dir, task, cache_command(task, module_import, force)):
        cache_dir.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(cache_dir, task)
        # an answer that takes no caches of others holds where these would do, too
        for asked in () if force else (question, question | {"only_missing": False}):
            if (known := _recall(cache_dir, asked, environment)) is not None:
                log(f"{task} is cached already")
                return known
        log_file = cache_dir / f"{task.replace(':', '_')}.log"
        with contextlib.ExitStack() as stack:
            scratch = Path(stack.enter_context(_scratch(cache_dir, task)))
            request = question | {
                "output": str(scratch),
                "runner": runner,
                "beam_options": list(beam_options),
                "staging": staging,
                "force": force,
            }
            # closed, which ends the child, before its scratch folder is removed
            process = stack.enter_context(contextlib.closing(CacheProcess(request, log_file, environment)))
            plan, seen = process.plan(log)
            for entry in plan:
                if entry["note"]:
                    log(f"warning: {entry['note']}")
            if compare_only and not all(entry["up_to_date"] for entry in plan):
                return {}
            _lock(stack, plan, cache_dir, force, log)
            names = [entry["task"] for entry in plan if not entry["up_to_date"]]
            _run(process, task, plan, names)
            if names and seen is not None and (changed := memory.changes(cache_dir, seen, environment)):
                raise UserError(
                    f"While {task} was being cached, this changed: {', '.join(changed)}. The new cache was thrown "
                    f"away. Type again: {cache_command(task, module_import, force)}"
                )
            caches = [_put_in_place(entry, scratch, cache_dir) for entry in plan]
    for entry in plan:
        log(f"{entry['task']} is cached{' already' if entry['up_to_date'] else ''}")
    definitions = {entry["task"]: entry["definition"] for entry in plan}
    answer: dict[str, Any] = definitions.get(task, definitions)
    if seen is not None and all(cache["files"] is not None for cache in caches):
        memory.remember(cache_dir, question, seen, caches, answer)
    return answer


def problem(folder: Path, export: Mapping[str, str], command: str) -> str | None:
    """What can be seen to be wrong with the cache of a task of the table without TensorFlow; None where nothing is.

    export: the digests of the splits of its text. command: what to type to make the cache again.
    """
    try:
        found = record.read(folder, command)
        if found is None:
            return None
        record.check_files(folder, found, command)
    except UserError as error:
        return str(error)
    splits = {split: [{"sha256": sha256}] for split, sha256 in export.items()}
    digest = functools.partial(memory.digest, folder.parent)
    differences = [
        *record.text_differences(found.definition["source"]["splits"], splits),
        *record.code_differences(found.package, package_digests(digest)),
    ]
    return str(record.refuse(folder, differences, command)) if differences else None


def _check_names(task: str, cache_dir: Path) -> None:
    if not _NAME.fullmatch(task):
        raise UserError(
            f"There is no task or mixture named {task!r}: names have letters, digits and underscores, and dots and "
            "colons inside."
        )
    require_no_pattern(cache_dir, "*?[]{}\\", "SeqIO", "T5XPG_CACHE_DIR=…")


def _recall(cache_dir: Path, question: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The answer of last time, if everything is as it was then. Raises UserError for a damaged cache."""
    known = memory.recall(cache_dir, question, environment)
    if known is None:
        return None
    for cache in known["caches"]:
        folder = Path(cache["folder"])
        command = cache_command(cache["task"], question["module_import"], force=True)
        found = record.read(folder, command)
        if not cache["ours"]:
            if found is not None or not folder.is_dir():
                return None
            if memory.digests_of_cache(cache_dir, folder) != cache["files"]:
                return None
        elif found is None or found.files != cache["files"]:
            return None  # gone, or made again since
        else:
            record.check_files(folder, found, command)
    answer: dict[str, Any] = known["answer"]
    return answer


def _run(process: CacheProcess, task: str, plan: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Have tasks cached, with a bar that counts their documents."""
    if not names:
        return
    total = sum(entry["examples"] or 0 for entry in plan if entry["task"] in names)
    progress: Progress | None = None
    with contextlib.ExitStack() as stack:
        for message in process.cache(names):
            if progress is None:  # the first document: Beam has built its pipeline
                progress = stack.enter_context(Progress(f"cache {task}", total or None, "documents"))
            progress.advance(message["count"], message.get("note", ""))


def _lock(
    stack: contextlib.ExitStack,
    plan: Sequence[dict[str, Any]],
    cache_dir: Path,
    force: bool,
    log: Callable[[str], None],
) -> None:
    """Take the lock of each task that is to be cached, in the order of their names; waits for those who cache one.

    What they have cached meanwhile is noted in the plan.
    """
    for entry in sorted(plan, key=lambda one: str(one["task"])):
        if entry["up_to_date"]:
            continue
        folder = cache_dir / entry["folder"]
        lock = cache_dir / memory.FOLDER / f"{entry['task'].replace(':', '_')}.lock"
        doing = f"caching {entry['task']} in {cache_dir}"
        stack.enter_context(locks.hold(lock, doing=doing, instead="", wait=log))
        found = None if force else record.read(folder)
        if found is not None and (found.definition, found.package) == (entry["definition"], entry["package"]):
            entry["up_to_date"] = True


def _put_in_place(entry: Mapping[str, Any], scratch: Path, cache_dir: Path) -> dict[str, Any]:
    """Move a new cache to where it belongs, with its record. Returns what `memory` keeps of a cache."""
    if entry["others"] is not None:
        return {"task": entry["task"], "folder": entry["others"], "ours": False, "files": entry["definition"]["files"]}
    folder = cache_dir / entry["folder"]
    found = record.read(folder) if entry["up_to_date"] else None
    if found is None:
        made = scratch / entry["folder"]
        names = sorted(path.name for path in made.iterdir() if path.is_file() and path.name != IDENTITY)
        held = {name: files.sha256_of_file(made / name) for name in names if not name.startswith(".")}
        found = Record(entry["definition"], entry["package"], entry["versions"], held)
        with files.directory_atomically(folder) as new:
            for path in made.iterdir():
                shutil.move(path, new / path.name)
            found.write(new)
    return {"task": entry["task"], "folder": str(folder), "ours": True, "files": found.files}


@contextlib.contextmanager
def _scratch(cache_dir: Path, task: str) -> Iterator[str]:
    """A folder for what is being cached. Its name says whose it is, so that `files.remove_abandoned` finds it."""
    prefix = files.temporary_prefix(f"{task.replace(':', '_')}.caching")
    with tempfile.TemporaryDirectory(
        prefix=prefix, suffix=".tmp", dir=cache_dir, ignore_cleanup_errors=True
    ) as scratch:
        yield scratch


def _remove_abandoned(cache_dir: Path, task: str) -> None:
    """Remove what killed processes left, and put back what they had moved aside."""
    for folder in {cache_dir, (cache_dir / task.replace(":", "/")).parent}:
        files.remove_abandoned(folder)


@contextlib.contextmanager
def _room(cache_dir: Path, task: str, command: str) -> Iterator[None]:
    """Turn the errors of a full disk into one message. command: what to type once there is room."""
    try:
        yield
    except (OSError, NoRoomError) as error:
        if not isinstance(error, NoRoomError) and not files.is_disk_full(error):
            raise
        free = ""
        with contextlib.suppress(OSError):
            free = f" ({shutil.disk_usage(cache_dir).free / 2**20:,.0f} MiB free)"
        raise UserError(
            f"There is no room in {cache_dir} for the cache of {task}{free}. What was there before is as it was. Make "
            f"room, or name a cache folder elsewhere (T5XPG_CACHE_DIR=…), and type: {command}"
        ) from error
