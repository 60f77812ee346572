"""Cache tasks, once. Imports no TensorFlow: that is the child process's (cache_worker).

A cache is the folder `<cache folder>/<task>` in SeqIO's own format, which any SeqIO user reads with `use_cached=True`.
Beside SeqIO's files stands `t5xpg_identity.json`: what the cache was made from, and the digests of its files. A cache
that was made from something else than the task is now is never used, and never replaced without being told to.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base import files, locks
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import directory_atomically
from t5xpg.base.paths import PACKAGE
from t5xpg.base.progress import Progress
from t5xpg.data.cache import record as cache_memory
from t5xpg.data.cache import record as cache_record
from t5xpg.data.cache.record import COMPLETED, IDENTITY, MissingTextError, Record
from t5xpg.data.tasks.task_names import cache_command

WORKER = "t5xpg.data.cache.worker"
# Runners: this program itself on one machine, and Beam's in this machine's memory. Beam's "DirectRunner" would first
# fetch another one from the network.
LOCAL = "local"
BEAM = "FnApiRunner"
# A full disk, a full quota, a file beyond the limit.
_LOG_LINES = 15


class NoRoomError(UserError):
    """The process found no room to write."""


class CacheProcess:
    """A running `cache_worker`. Close it: it ends then, whatever it does.

    What it prints goes into the request's folder "output", and from there to `log_file` once it caches or fails.
    """

    def __init__(self, request: Mapping[str, Any], log_file: Path, environment: Mapping[str, str]) -> None:
        self._task, self._log_file, self._output = request["task"], log_file, Path(request["output"]) / ".log"
        reading, writing = os.pipe()
        self._reports = os.fdopen(reading, encoding="utf-8")
        try:
            with self._output.open("wb") as output:
                # Its own session: Ctrl-C reaches this process alone, which then ends the child.
                self._child = subprocess.Popen(
                    [sys.executable, "-m", WORKER, str(writing)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[writing],
                    start_new_session=True,
                    env=environment,
                )
        except BaseException:
            self._reports.close()
            raise
        finally:
            os.close(writing)
        # its standard input stays open as long as this process lives: the child ends when it closes
        self._send(request)

    def plan(self, log: Callable[[str], None]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """What there is to do: an entry a task, and what that was seen from (see `cache_memory`).

        `log` gets lines for the user while that is found out.
        """
        for message in self._messages():
            if "said" in message:
                log(message["said"])
                continue
            return message["plan"], message["seen"]
        raise self._failed(self._child.wait())

    def cache(self, tasks: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Cache tasks of the plan; yields the progress, {"count": documents since the last}."""
        self._keep_log()
        self._send({"cache": list(tasks)})
        yield from self._messages()
        status = self._child.wait()
        if status:
            raise self._failed(status)

    def close(self) -> None:
        """End the process."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.kill()
        self._child.wait()
        self._reports.close()

    def _send(self, value: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its exit code says more
            self._child.stdin.write(json.dumps(value).encode("utf-8") + b"\n")
            self._child.stdin.flush()

    def _messages(self) -> Iterator[dict[str, Any]]:
        for line in self._reports:
            message = json.loads(line)
            if message.get("datasets"):
                raise MissingTextError(message["user_error"], message["datasets"])
            if "user_error" in message:
                raise UserError(message["user_error"])
            if message.get("no_room"):
                raise NoRoomError(f"There is no room to cache {self._task}.")
            yield message

    def _keep_log(self) -> None:
        with contextlib.suppress(OSError):  # it stays where it is
            os.replace(self._output, self._log_file)
            self._output = self._log_file

    def _failed(self, status: int) -> UserError:
        self._keep_log()
        text = self._output.read_text("utf-8", errors="replace")
        if says_no_room(text):
            return NoRoomError(f"There is no room to cache {self._task}.")
        lines = [line for line in text.splitlines() if line.strip()]
        said = f"Caching {self._task} failed (exit code {status})"
        if status < 0:
            said = f"The process that cached {self._task} was killed by signal {-status}"
            said += ", as the system does where memory runs out" if status == -9 else ""
        return UserError(
            f"{said}. The last lines of {self._output}:\n" + "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])
        )


def says_no_room(text: str) -> bool:
    """Whether a message of Python, TensorFlow or Beam tells of a full disk."""
    return any(os.strerror(number) in text for number in files.DISK_FULL)


@dataclass(frozen=True)
class Runner:
    """selector: how Beam knows it. package: a module that it imports, with what to install. options: that it cannot do
    without. remote: its workers see none of this machine's folders."""

    selector: str
    package: str | None = None
    install: str = ""
    options: tuple[str, ...] = ()
    remote: bool = False


RUNNERS = {
    "FnApiRunner": Runner("FnApiRunner"),
    "DirectRunner": Runner("DirectRunner"),
    "PrismRunner": Runner("PrismRunner"),
    "DaskRunner": Runner("t5xpg.data.cache.beam_dask.DaskRunnerForCaching", "distributed", "dask distributed"),
    "FlinkRunner": Runner("FlinkRunner"),
    "SparkRunner": Runner("SparkRunner"),
    "PortableRunner": Runner("PortableRunner", options=("--job_endpoint",)),
    "DataflowRunner": Runner(
        "DataflowRunner",
        "google.cloud.dataflow_v1beta3",
        "'apache-beam[gcp]'",
        options=("--project", "--region", "--temp_location"),
        remote=True,
    ),
}


def resolve(name: str, options: Sequence[str], staging: str | None) -> str:
    """How Beam knows the runner. A name with dots is a class of its own, taken as it is.

    Raises UserError for a name that is none, and for what the runner would miss: a package, options, a staging folder.
    """
    if "." in name:
        return name
    if name not in RUNNERS:
        raise UserError(
            f"There is no runner {name!r}: RUNNER is local, one of {', '.join(RUNNERS)}, or a class by its full name."
            f"{nearest(name, ['local', *RUNNERS])}"
        )
    runner = RUNNERS[name]
    if runner.package is not None and not _is_there(runner.package):
        raise UserError(
            f"RUNNER={name} needs packages that are not installed: .venv/bin/python -m pip install {runner.install}"
        )
    given = {option.partition("=")[0] for option in options}
    missing = [option for option in runner.options if option not in given]
    if missing:
        raise UserError(
            f'RUNNER={name} needs {" and ".join(missing)}: BEAM_OPTIONS="{" ".join(f"{one}=…" for one in missing)}".'
        )
    if runner.remote and not staging:
        raise UserError(
            f"The workers of RUNNER={name} see no folder of this machine: name one that they and this machine can "
            "write, STAGING=gs://bucket/folder. The cache is fetched from there."
        )
    return runner.selector


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package around it
        return False


__all__ = ["COMPLETED", "DEFAULT_RUNNER", "MissingTextError", "cache_task", "problem", "read_identity"]

DEFAULT_RUNNER = LOCAL
_NAME = re.compile(r"\w+(\.\w+)*(:\w+(\.\w+)*)*")
# SeqIO and Beam take a cache's path for a pattern.
_WILDCARDS = set("*?[]{}\\")

# The modules that decide what a task of the table caches, and how that is compared.
DEFINING_FILES = (
    "data/tasks/task_names.py",
    "data/tasks/table.py",
    "data/tasks/labelled.py",
    "data/tasks/seqio_vocabularies.py",
    "data/tasks/shared_cache.py",
    "data/text/labelled.py",
    "data/preprocessors.py",
    "data/vocab/files.py",
    "data/vocab/record.py",
    "data/vocab/sentinels.py",
    "data/vocab/tokenizers.py",
    "data/vocab/vocabulary.py",
    "data/cache/definition.py",
    "data/cache/record.py",
    "data/cache/sample.py",
)


def resolve_runner(runner: str, beam_options: Sequence[str], staging: str | None) -> str:
    """The runner as Beam knows it, or LOCAL. Raises UserError for one that is none, and for options that do not fit."""
    if runner != LOCAL:
        return resolve(runner, beam_options, staging)
    if beam_options or staging:
        given = f"BEAM_OPTIONS ({' '.join(beam_options)}) are" if beam_options else f"STAGING ({staging}) is"
        raise UserError(f"{given} for Apache Beam. Name a runner of Beam, as RUNNER={BEAM}, too.")
    return LOCAL


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

    `runner` is "local", which caches on this machine (`local_cache`), or any Apache Beam runner, with which SeqIO's
    script does (`cache_beam`), `beam_options` being further options of its pipeline ("--name=value") and `staging` a
    folder, here or in a bucket, that its workers share with this machine where they do not share `cache_dir`: the cache
    is fetched from there. `module_import` names modules that register tasks. `force` caches again what is there. `log`
    gets a line a task. Returns the identity of the cache (of a mixture: task to identity): what was cached, by digests.
    `only_missing` also takes caches that others made with SeqIO, in any of its cache folders, and leaves tasks alone
    that cannot be cached: its result lacks those. `compare_only` caches nothing: the caches that there are
    are compared with what their tasks are now.

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
    }
    environment = _environment(cache_dir, data_dir)
    with _room(cache_dir, task, cache_command(task, module_import, force)):
        cache_dir.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(cache_dir, task)
        # what was found where all had to be ours holds where others' would do
        for asked in () if force else (question, question | {"only_missing": False}):
            if (known := _known(cache_dir, asked, environment)) is not None:
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
            if names and seen is not None and (changed := cache_memory.changes(cache_dir, seen, environment)):
                raise UserError(
                    f"While {task} was being cached, this changed: {', '.join(changed)}. The new cache was thrown "
                    f"away. Type again: {cache_command(task, module_import, force)}"
                )
            caches = [_put_in_place(entry, scratch, cache_dir) for entry in plan]
    for entry in plan:
        log(f"{entry['task']} is cached{' already' if entry['up_to_date'] else ''}")
    identities = {entry["task"]: entry["definition"] for entry in plan}
    identity: dict[str, Any] = identities.get(task, identities)
    if seen is not None and all(cache["files"] is not None for cache in caches):
        cache_memory.remember(cache_dir, question, seen, caches, identity)
    return identity


def read_identity(folder: Path) -> dict[str, Any] | None:
    """What t5xpg_identity.json in a task's cache says was cached; None where there is none.

    Raises UserError where it cannot be read.
    """
    record = cache_record.read(folder)
    return None if record is None else record.definition


def problem(folder: Path, export: Mapping[str, str], command: str) -> str | None:
    """What can be seen to be wrong with the cache of a task of the table without TensorFlow; None where nothing is.

    export: the digests of the splits of its text. command: what to type to make the cache again.
    """
    try:
        record = cache_record.read(folder, command)
        if record is None:
            return None
        cache_record.check_files(folder, record, command)
    except UserError as error:
        return str(error)
    definition = record.definition
    splits = {split: [{"sha256": sha256}] for split, sha256 in export.items()}
    found = cache_record.text_differences(definition["source"]["splits"], splits)
    return str(cache_record.refuse(folder, found, command)) if found else None


def _check_names(task: str, cache_dir: Path) -> None:
    if not _NAME.fullmatch(task):
        raise UserError(
            f"There is no task or mixture named {task!r}: names have letters, digits and underscores, and dots and "
            "colons inside."
        )
    path = str(cache_dir.absolute())
    if wrong := sorted(_WILDCARDS & set(path)):
        raise UserError(
            f"The cache folder {path} has {' and '.join(wrong)} in its name, which SeqIO takes for a pattern. Name "
            "another folder: T5XPG_CACHE_DIR=…"
        )


def _environment(cache_dir: Path, data_dir: Path) -> dict[str, str]:
    """The environment of the process that knows tasks."""
    places = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "T5XPG_DATA_DIR": str(data_dir.resolve()),
        "T5XPG_CACHE_DIR": str(cache_dir.resolve()),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(places),
    }


def _known(cache_dir: Path, question: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The identity that was found last time, if everything is as it was then. Raises UserError for a damaged cache."""
    known = cache_memory.unchanged(cache_dir, question, environment)
    if known is None:
        return None
    for cache in known["caches"]:
        folder = Path(cache["folder"])
        command = cache_command(cache["task"], question["module_import"], force=True)
        record = cache_record.read(folder, command)
        if not cache["ours"]:
            if record is not None or not folder.is_dir() or cache_memory.of_caches(cache_dir, folder) != cache["files"]:
                return None
        elif record is None or record.files != cache["files"]:
            return None  # gone, or made again since
        else:
            cache_record.check_files(folder, record, command)
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
        lock = cache_dir / cache_memory.FOLDER / f"{entry['task'].replace(':', '_')}.lock"
        doing = f"caching {entry['task']} in {cache_dir}"
        stack.enter_context(locks.hold(lock, doing=doing, instead="", wait=log))
        record = None if force else cache_record.read(folder)
        if record is not None and (record.definition, record.code) == (entry["definition"], entry["code"]):
            entry["up_to_date"] = True


def _put_in_place(entry: Mapping[str, Any], scratch: Path, cache_dir: Path) -> dict[str, Any]:
    """Move a new cache to where it belongs, with its record. Returns what `cache_memory` keeps of a cache."""
    if entry["others"] is not None:
        return {"task": entry["task"], "folder": entry["others"], "ours": False, "files": entry["definition"]["files"]}
    folder = cache_dir / entry["folder"]
    record = cache_record.read(folder) if entry["up_to_date"] else None
    if record is None or record.files is None or record.code is None:
        place = scratch / entry["folder"] if record is None else folder
        names = sorted(path.name for path in place.iterdir() if path.is_file() and path.name != IDENTITY)
        held = {name: files.sha256_of_file(place / name) for name in names if not name.startswith(".")}
        versions = entry["versions"] if record is None else record.versions
        record = Record(entry["definition"], versions, entry["code"], held)
        if place == folder:  # a cache of an earlier version of this program, which was compared with its source
            record.write(folder)
        else:
            with directory_atomically(folder) as new:
                for path in place.iterdir():
                    shutil.move(path, new / path.name)
                record.write(new)
    return {"task": entry["task"], "folder": str(folder), "ours": True, "files": record.files}


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
    """Say where there is no room."""
    try:
        yield
    except (OSError, NoRoomError) as error:
        if not isinstance(error, NoRoomError) and not files.is_disk_full(error):
            raise
        raise _no_room(cache_dir, task, command) from error


def _no_room(cache_dir: Path, task: str, command: str) -> UserError:
    """The error where a cache does not fit."""
    free = ""
    with contextlib.suppress(OSError):
        free = f" ({shutil.disk_usage(cache_dir).free / 2**20:,.0f} MiB free)"
    return UserError(
        f"There is no room in {cache_dir} for the cache of {task}{free}. What was there before is as it was. Make "
        f"room, or name a cache folder elsewhere (T5XPG_CACHE_DIR=…), and type: {command}"
    )
