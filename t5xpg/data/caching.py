"""Cache tasks with SeqIO's `cache_tasks_main`, once. Imports no TensorFlow: that is the child process's (cache_worker).

A cache is the folder `<cache folder>/<task>` in SeqIO's own format, which any SeqIO user reads with `use_cached=True`.
Beside SeqIO's files stands `t5xpg_identity.json`: what the cache was made from.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.data.manifest import read_manifest
from t5xpg.errors import UserError
from t5xpg.files import directory_atomically, read_json, sha256_of_file, write_json
from t5xpg.paths import PACKAGE
from t5xpg.progress import Progress

# Beam's local runner, in this machine's memory. Beam's "DirectRunner" would first fetch another one from the network.
DEFAULT_RUNNER = "FnApiRunner"
# Runners that hold the whole pipeline in this machine's memory: their caches can be put in order afterwards.
_LOCAL_RUNNERS = ("FnApiRunner", "DirectRunner")
IDENTITY = "t5xpg_identity.json"
_COMPLETED = "COMPLETED"  # SeqIO's own mark
_LOG_LINES = 15
_WORKER = "t5xpg.data.cache_worker"

# The modules that decide what a task of the table caches.
_DEFINING_FILES = (
    "data/task_names.py",
    "data/task_table.py",
    "data/preprocessors.py",
    "data/seqio_vocabularies.py",
    "vocabularies.py",
)


class MissingTextError(UserError):
    """Tasks of the table whose exports are not there; `datasets` are those to export."""

    def __init__(self, message: str, datasets: Sequence[str]) -> None:
        super().__init__(message)
        self.datasets = tuple(datasets)


def cache_task(
    task: str,
    *,
    cache_dir: Path,
    data_dir: Path,
    runner: str = DEFAULT_RUNNER,
    beam_options: Sequence[str] = (),
    force: bool = False,
    module_import: Sequence[str] = (),
    only_missing: bool = False,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Cache a task, or each task of a mixture, below `cache_dir` unless an up-to-date cache is there.

    `runner` is any Apache Beam runner, `beam_options` further options of its pipeline ("--name=value"); `module_import`
    names modules that register tasks. `force` caches again what is up to date. `log` gets a line a task. Returns the
    identity of the cache (of a mixture: task to identity): what was cached, by digests. `only_missing` leaves caches
    that others made with SeqIO, in any of its cache folders, as they are, and tasks alone that cannot be cached: its
    result lacks those.

    With a local runner the same task and text give the same bytes; elsewhere the order of the documents is Beam's. A
    cache appears when it is whole. What the process printed is kept in `<cache_dir>/<task>.log`. Raises UserError
    where the task is unknown, its text is missing (MissingTextError where that is an export), it has nothing to cache,
    or the process failed.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    if not force and not module_import:
        identity = _unchanged(cache_dir / task, data_dir)
        if identity is not None:
            log(f"{task} is cached already")
            return identity

    _remove_abandoned(cache_dir)
    log_file = cache_dir / f"{task.replace(':', '_')}.log"
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_scratch_prefix(), dir=cache_dir)))
        request = {
            "task": task,
            "output": str(scratch),
            "caches": str(cache_dir),
            "data_dir": str(data_dir),
            "pipeline_options": [f"--runner={runner}", *beam_options],
            "put_in_order": runner in _LOCAL_RUNNERS,
            "module_import": list(module_import),
            "force": force,
            "only_missing": only_missing,
        }
        plan: list[dict[str, Any]] = []
        progress: Progress | None = None
        directories = {"T5XPG_DATA_DIR": data_dir, "T5XPG_CACHE_DIR": cache_dir}
        # closed, which ends the child, before its scratch folder is removed
        messages = stack.enter_context(contextlib.closing(_messages(request, log_file, directories)))
        for message in messages:
            if message.get("datasets"):
                raise MissingTextError(message["user_error"], message["datasets"])
            if "user_error" in message:
                raise UserError(message["user_error"])
            if "plan" in message:
                plan = message["plan"]
            else:
                if progress is None:  # the first document: Beam has built its pipeline
                    total = sum(entry["examples"] or 0 for entry in plan if not entry["up_to_date"])
                    progress = stack.enter_context(Progress(f"cache {task}", total or None, "documents"))
                progress.advance(message["count"], message.get("note", ""))
        for entry in plan:
            if entry["others"]:
                continue
            folder = cache_dir / entry["folder"]
            quick = {"dataset": entry["dataset"], "export": entry["export"], **_code()}
            identity = entry["definition"]
            if not entry["up_to_date"]:
                with directory_atomically(folder) as new:
                    for path in (scratch / entry["folder"]).iterdir():
                        shutil.move(path, new / path.name)
                    write_json(new / IDENTITY, {"definition": identity, "versions": entry["versions"], "quick": quick})
            else:
                recorded = read_json(folder / IDENTITY)
                write_json(folder / IDENTITY, recorded | {"quick": quick})
    for entry in plan:
        log(f"{entry['task']} is cached{' already' if entry['up_to_date'] else ''}")
    identities = {entry["task"]: entry["definition"] for entry in plan}
    return identities.get(task, identities)


def _scratch_prefix(process: int | None = None) -> str:
    return f".caching-{platform.node()}-{os.getpid() if process is None else process}-"


def _remove_abandoned(cache_dir: Path) -> None:
    """Remove the scratch folders of processes of this machine that were killed."""
    for path in cache_dir.glob(".caching-*"):
        process = path.name.rsplit("-", 2)[-2]
        # another machine's, or of a process that still runs (a number that was given out again is left, too)
        if not process.isdigit() or not path.name.startswith(_scratch_prefix(int(process))):
            continue
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except PermissionError:
            continue  # another user's, and alive


def read_identity(folder: Path) -> dict[str, Any] | None:
    """What t5xpg_identity.json in a task's cache says was cached; None where there is none that can be read."""
    recorded = _recorded(folder)
    return None if recorded is None else recorded["definition"]


def _recorded(folder: Path) -> dict[str, Any] | None:
    if not (folder / _COMPLETED).is_file() or not (folder / IDENTITY).is_file():
        return None
    try:
        recorded = read_json(folder / IDENTITY)
    except ValueError:
        return None  # torn: cached anew
    return recorded if isinstance(recorded, dict) and {"definition", "quick"} <= recorded.keys() else None


def _unchanged(folder: Path, data_dir: Path) -> dict[str, Any] | None:
    """The recorded identity, if it can be seen without TensorFlow that the task and its text are the same as then.

    That is so where the task reads an export, which has the same digests, and the code that defines the table's tasks
    is the same. Otherwise the child process compares the definitions.
    """
    recorded = _recorded(folder)
    if recorded is None or recorded["quick"]["dataset"] is None:
        return None
    quick = recorded["quick"]
    try:
        export = read_manifest(data_dir / quick["dataset"]).identity
    except UserError:
        return None  # the child process says what is missing
    return recorded["definition"] if quick == {"dataset": quick["dataset"], "export": export, **_code()} else None


def _code() -> dict[str, Any]:
    return {
        "code": {name: sha256_of_file(PACKAGE / name) for name in _DEFINING_FILES},
        "seqio": importlib.metadata.version("seqio"),
    }


def _messages(
    request: Mapping[str, Any], log_file: Path, environment: Mapping[str, Path]
) -> Generator[dict[str, Any], None, None]:
    """Run the child process and yield what it reports. Raises UserError, with the end of its log, where it fails."""
    reading, writing = os.pipe()
    with log_file.open("wb") as output, os.fdopen(reading, encoding="utf-8") as reports:
        # Its own session: Ctrl-C reaches this process alone, which then ends the child and removes what it wrote.
        child = subprocess.Popen(
            [sys.executable, "-m", _WORKER, str(writing)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            start_new_session=True,
            env=os.environ
            | {name: str(path.resolve()) for name, path in environment.items()}
            | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
            | {"PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])},
        )
        os.close(writing)
        assert child.stdin is not None
        try:
            # its standard input stays open as long as this process lives: the child ends when it closes
            child.stdin.write(json.dumps(request).encode("utf-8") + b"\n")
            child.stdin.flush()
            for line in reports:
                yield json.loads(line)
            status = child.wait()
        finally:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            child.kill()
            child.wait()
    if status:
        lines = [line for line in log_file.read_text("utf-8", errors="replace").splitlines() if line.strip()]
        raise UserError(
            f"Caching {request['task']} failed (exit code {status}). The last lines of {log_file}:\n"
            + "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])
        )
