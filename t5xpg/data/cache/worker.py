"""The calls of the data process that caches (`python -m t5xpg.data.cache.worker <file descriptor>`): it compares
definitions, and caches by itself or with Beam. `caching` makes the request."""

import atexit
import functools
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.data import late_imports
from t5xpg.data.cache import definition, digest_memory, record
from t5xpg.data.cache.record import COMPLETED, MissingTextError
from t5xpg.data.cache.runners import BEAM, LOCAL
from t5xpg.data.data_process import Calls, Report, serve
from t5xpg.data.tasks.task_names import cache_command
from t5xpg.data.text.manifest import find_manifests, read_manifest

_REMOTE = "://"


def start(report: Report) -> Calls:
    """The calls of the process, which answers both for one request."""
    return {"plan": functools.partial(_plan, report), "cache": functools.partial(_cache, report)}


def _plan(log: Report, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of the plan, one for each task. Raises one UserError for all caches that do not fit."""
    if request["runner"] == LOCAL:
        late_imports.import_libraries()  # not with Beam: its runners may send stand-ins to other processes
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which the servers that Beam starts and ends inherit
    from t5xpg.data.spec import DatasetConfig
    from t5xpg.data.tasks import registered  # noqa: F401
    from t5xpg.data.tasks.providers import find_provider, import_modules, tasks_of
    from t5xpg.data.tasks.shared_cache import cached_task

    import_modules(request["module_import"])
    name = request["task"]
    # each once, where tasks share a cache
    tasks = list(dict.fromkeys(map(cached_task, tasks_of(find_provider(DatasetConfig(name, {}))))))
    cacheable = [task for task in tasks if task.supports_caching]
    if not cacheable and not request["only_missing"]:
        raise UserError(
            f"{name} has nothing to cache: its preprocessors hold no seqio.CacheDatasetPlaceholder. "
            "Train from the source: USE_CACHED_TASKS = False."
        )
    plan: list[dict[str, Any]] = []
    errors: list[UserError] = []
    for task in cacheable:
        try:
            plan.append(_plan_task(task, request, log))
        except UserError as error:
            errors.append(error)
    if missing := [error for error in errors if isinstance(error, MissingTextError)]:
        raise MissingTextError(
            "\n".join(map(str, missing)), sorted({dataset for error in missing for dataset in error.datasets})
        )
    if errors:
        raise UserError("\n".join(map(str, errors)))
    return plan


def _plan_task(task: Any, request: Mapping[str, Any], log: Report) -> dict[str, Any]:
    """The entry of the plan for one task: facts about the task and its existing cache. Downloads missing data, with
    lines for `log`. Raises UserError if the cache was made from another definition than the task has now, and if the
    files of its source are missing or not as exported."""
    import seqio

    from t5xpg.data.tasks import sources
    from t5xpg.data.tasks.table import ROWS

    sources.check_arguments(task)
    caches = Path(request["caches"])
    command = cache_command(task.name, request["module_import"], force=True)
    folder = None if request["force"] else _folder_of_cache(task, caches, request["only_missing"])
    cache_record = None if folder is None else record.read(folder, command)
    if folder is None:
        sources.prepare(task, log)
    entry: dict[str, Any] = {
        "task": task.name,
        "folder": seqio.get_task_dir_from_name(task.name),
        "examples": sources.number_of_examples((task, split) for split in task.splits),
        "package": {},
        "versions": record.versions(),
        "up_to_date": folder is not None,
        "note": None,
    }
    if folder is not None and cache_record is None:
        note = f"was made by SeqIO itself, and is not compared with its text. To make it from that, type: {command}"
        return entry | _cache_of_others(task, folder, digest_memory.digests_of_cache(caches, folder), note)
    digest = functools.partial(digest_memory.digest, caches)
    exports = find_manifests(Path(request["data_dir"]))
    if (row := ROWS.get(task.name)) is not None and row.dataset in exports:
        read_manifest(exports[row.dataset]).check_files(exports[row.dataset])
    definition_now = definition.definition_of(task, digest, request["module_import"])
    if folder is None or cache_record is None:
        if request["only_missing"] and not request["force"] and _REMOTE in (task.cache_dir or ""):
            return entry | _remote_cache(task)
        return entry | {"definition": definition_now, "package": definition.package_code(task, digest)}
    record.check(folder, cache_record, definition_now, definition.package_code(task, digest), command)
    return entry | {"definition": cache_record.definition, "package": cache_record.package}


def _cache_of_others(task: Any, folder: Path | str, files: Mapping[str, Any], note: str) -> dict[str, Any]:
    """The fields of the plan for a cache that others made: its files stand for the definition that it was made from."""
    return {"definition": {"task": task.name, "files": files}, "note": f"the cache of {task.name} in {folder} {note}"}


def _remote_cache(task: Any) -> dict[str, Any]:
    """The fields of the plan for a cache on another machine, with the sizes of its files."""
    import tensorflow as tf

    names = sorted(tf.io.gfile.listdir(task.cache_dir))
    sizes = {name: tf.io.gfile.stat(os.path.join(task.cache_dir, name)).length for name in names}
    fields = _cache_of_others(task, task.cache_dir, sizes, "lies on another machine and was not compared")
    return {"up_to_date": True, **fields}


def _folder_of_cache(task: Any, caches: Path, others: bool) -> Path | None:
    """The folder of a task's cache: in our cache folder, or, with `others`, where SeqIO finds it. None without one."""
    import seqio

    from t5xpg.data.tasks.table import ROWS

    ours = caches / seqio.get_task_dir_from_name(task.name)
    if (ours / COMPLETED).is_file():
        return ours
    # the tasks of the table are ours to cache
    if not others or not task.cache_dir or task.name in ROWS or _REMOTE in task.cache_dir:
        return None
    return Path(task.cache_dir)


def _cache(report: Report, request: Mapping[str, Any], plan: Sequence[Mapping[str, Any]]) -> None:
    """Cache the tasks of the entries. Reports the number of documents since the last report, and a note."""
    import seqio

    names = [entry["task"] for entry in plan]
    output, runner, modules = Path(request["output"]), request["runner"], request["module_import"]
    try:
        if runner == LOCAL:
            from t5xpg.data.cache import local

            for name in names:
                folder = output / seqio.get_task_dir_from_name(name)
                command = f"{cache_command(name, modules)} RUNNER={BEAM}"
                local.cache_task(seqio.TaskRegistry.get(name), folder, command, report)
        else:
            from t5xpg.data.cache import beam

            options, staging = request["beam_options"], request["staging"]
            beam.cache_tasks(names, output, runner, options, ("t5xpg.tasks", *modules), report, staging)
    finally:
        atexit._run_exitfuncs()  # those of Beam and of modules that register tasks; the process is ended without them
    _check_unchanged(plan, request)


def _check_unchanged(plan: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> None:
    """Raise UserError where text or code of tasks changed while they were being cached."""
    import seqio

    digest = functools.partial(digest_memory.digest, Path(request["caches"]))
    for entry in plan:
        now = definition.definition_of(seqio.TaskRegistry.get(entry["task"]), digest, request["module_import"])
        before = record.Record(entry["definition"], {}, {}, {})
        if changed := record.differences(before, now, {}):
            command = cache_command(request["task"], request["module_import"], request["force"])
            raise UserError(
                f"While {entry['task']} was being cached, this changed: {'; '.join(changed)}. The new cache was thrown "
                f"away. Type again: {command}"
            )


if __name__ == "__main__":
    serve(start)
