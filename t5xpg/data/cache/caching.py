"""Cache tasks, once. Imports no TensorFlow: the child process (`worker`) does that.

A cache is the folder `<cache folder>/<task>` in SeqIO's own format, for `use_cached=True`, with `t5xpg_identity.json`:
what it was made from, and the digests of its files. A cache that was made from something else than the task is now is
never used, and is replaced only on request.
"""

import contextlib
import functools
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base import files, locks
from t5xpg.base.errors import UserError
from t5xpg.base.paths import require_no_pattern
from t5xpg.base.progress import Progress
from t5xpg.data.cache import last_check, record
from t5xpg.data.cache.definition import package_digests
from t5xpg.data.cache.process import CacheProcess, environment_of_worker
from t5xpg.data.cache.record import COMPLETED, IDENTITY, MissingTextError, Record
from t5xpg.data.cache.runners import LOCAL, resolve_runner
from t5xpg.data.tasks.task_names import cache_command

__all__ = ["COMPLETED", "MissingTextError", "cache_task", "problem", "resolve_runner"]

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
    existing caches are compared with what their tasks are now.

    Returns the `definition` of the task whose cache was made or found; for a mixture, or a task that reads another's
    cache, definitions by task; {} where compare_only finds a cache missing. A cache appears when it is whole; the
    process's output is kept in `<cache_dir>/<task>.log`. Of two who cache one task, the second waits for the first.

    Raises UserError for an unknown task, missing text (MissingTextError for that of an export), nothing to cache, a
    process that failed, no room, and for a cache that is damaged or was made from something else than the task is now.
    A cache of other library versions, or SeqIO's own, is compared with a sample of the source, and a warning says so.
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
    again = cache_command(task, module_import, force)
    remedy = f"Make room, or name a cache folder elsewhere (T5XPG_CACHE_DIR=…), and type: {again}"
    with files.room_for(f"the cache of {task}", cache_dir, remedy), contextlib.ExitStack() as stack:
        cache_dir.mkdir(parents=True, exist_ok=True)
        for folder in {cache_dir, (cache_dir / task.replace(":", "/")).parent}:
            files.remove_abandoned(folder)
        # an answer without caches of others is also valid where such caches are accepted
        for asked in () if force else (question, question | {"only_missing": False}):
            if (known := _recall(cache_dir, asked, environment)) is not None:
                log(f"{task} is cached already")
                return known
        name = task.replace(":", "_")
        # its name says whose it is, so that `files.remove_abandoned` finds it
        prefix = files.temporary_prefix(f"{name}.caching")
        scratch = Path(
            stack.enter_context(tempfile.TemporaryDirectory(".tmp", prefix, cache_dir, ignore_cleanup_errors=True))
        )
        request = question | {
            "output": str(scratch),
            "runner": runner,
            "beam_options": list(beam_options),
            "staging": staging,
            "force": force,
        }
        # closed, which ends the child, before its scratch folder is removed
        process = stack.enter_context(contextlib.closing(CacheProcess(request, cache_dir / f"{name}.log", environment)))
        plan, seen = process.plan(log)
        for entry in plan:
            if entry["note"]:
                log(f"warning: {entry['note']}")
        if compare_only and not all(entry["up_to_date"] for entry in plan):
            return {}
        _lock(stack, plan, cache_dir, force, log)
        names = [entry["task"] for entry in plan if not entry["up_to_date"]]
        if names:
            total = sum(entry["examples"] or 0 for entry in plan if entry["task"] in names)
            messages = process.cache(names)
            first = next(messages, None)  # Beam has built its pipeline
            with Progress(f"cache {task}", total or None, "documents") as progress:
                for message in filter(None, itertools.chain([first], messages)):
                    progress.advance(message["count"], message.get("note", ""))
        if names and seen is not None and (changed := last_check.changes(cache_dir, seen, environment)):
            raise UserError(
                f"While {task} was being cached, this changed: {', '.join(changed)}. The new cache was thrown away. "
                f"Type again: {again}"
            )
        caches = [_put_in_place(entry, scratch, cache_dir) for entry in plan]
    for entry in plan:
        log(f"{entry['task']} is cached{' already' if entry['up_to_date'] else ''}")
    definitions = {entry["task"]: entry["definition"] for entry in plan}
    answer: dict[str, Any] = definitions.get(task, definitions)
    if seen is not None and all(cache["files"] is not None for cache in caches):
        last_check.remember(cache_dir, question, seen, caches, answer)
    return answer


def problem(folder: Path, export: Mapping[str, str], command: str) -> str | None:
    """What is wrong with the cache of a task of the table, as far as can be seen without TensorFlow; None if nothing.
    export: the digests of the splits of its text. command: what to type to make the cache again."""
    try:
        found = record.read(folder, command)
        if found is None:
            return None
        record.check_files(folder, found, command)
    except UserError as error:
        return str(error)
    splits = {split: [{"sha256": sha256}] for split, sha256 in export.items()}
    digest = functools.partial(last_check.digest, folder.parent)
    differences = [
        *record.text_differences(found.definition["source"]["splits"], splits),
        *record.package_differences(found, package_digests(digest)),
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
    """The answer of the last time, if nothing has changed since. Raises UserError for a damaged cache."""
    known = last_check.recall(cache_dir, question, environment)
    if known is None:
        return None
    for cache in known["caches"]:
        folder = Path(cache["folder"])
        command = cache_command(cache["task"], question["module_import"], force=True)
        found = record.read(folder, command)
        if not cache["ours"]:
            others = folder.is_dir() and last_check.digests_of_cache(cache_dir, folder)
            if found is not None or others != cache["files"]:
                return None
        elif found is None or found.files != cache["files"]:
            return None  # gone, or made again since
        else:
            record.check_files(folder, found, command)
    answer: dict[str, Any] = known["answer"]
    return answer


def _lock(
    stack: contextlib.ExitStack,
    plan: Sequence[dict[str, Any]],
    cache_dir: Path,
    force: bool,
    log: Callable[[str], None],
) -> None:
    """Take the lock of each task to be cached, once others have stopped caching it; note in the plan what they made."""
    for entry in sorted(plan, key=lambda one: str(one["task"])):
        if entry["up_to_date"]:
            continue
        folder = cache_dir / entry["folder"]
        # with a sign that no name has: `a:b` and `a_b` are two tasks
        lock = cache_dir / last_check.FOLDER / f"{entry['task'].replace(':', '-')}.lock"
        doing = f"caching {entry['task']} in {cache_dir}"
        stack.enter_context(locks.hold(lock, doing=doing, instead="", wait=log))
        found = None if force else record.read(folder)
        if found is not None and (found.definition, found.package) == (entry["definition"], entry["package"]):
            entry["up_to_date"] = True


def _put_in_place(entry: Mapping[str, Any], scratch: Path, cache_dir: Path) -> dict[str, Any]:
    """Move a new cache to where it belongs, with its record. Returns what `last_check` keeps of a cache."""
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
