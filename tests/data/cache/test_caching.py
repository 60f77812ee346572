"""Caches: what SeqIO reads from them, when they are made again, and what happens when making one fails."""

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from t5xpg.base import locks
from t5xpg.data.cache import caching, digest_memory, record
from t5xpg.data.cache.caching import cache_task
from t5xpg.data.cache.record import Record
from t5xpg.data.tasks.task_names import BYTES
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.manifest import read_manifest
from tests.refusals import assert_named, refused
from tests.workplace import left_by

pytestmark = pytest.mark.process

TASK = "mine_span_corruption"
AGAIN = f"make cache TASK={TASK} FORCE=1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a space in its path, with an export and its cache."""
    folder = tmp_path_factory.mktemp("a folder") / "with space"
    folder.mkdir()
    text = folder / "text.txt"
    text.write_text("\n".join(f"Row {i}: " + " ".join(f"w{i * j % 89}" for j in range(40)) for i in range(60)))
    export_dataset("mine", data_dir=folder / "data", files={None: [text]}, log=lambda line: None)
    cache_task(TASK, cache_dir=folder / "cache", data_dir=folder / "data", log=lambda line: None)
    return folder


def checked(folder: Path, **changes: Any) -> Record | None:
    """The record of the cache, compared with its text and its vocabulary."""
    given = {"export": read_manifest(folder / "data" / "mine").identity, "vocabulary": BYTES.to_json()} | changes
    return caching.checked_record(folder / "cache" / TASK, **given, command=AGAIN)


def test_an_up_to_date_cache_is_not_made_again(folder: Path) -> None:
    said: list[str] = []
    where: dict[str, Any] = {"cache_dir": folder / "cache", "data_dir": folder / "data", "log": said.append}
    identity = cache_task(TASK, only_missing=True, **where)
    assert said == [f"{TASK} is cached already"]
    found = record.read(folder / "cache" / TASK)
    assert found is not None
    assert identity == found.definition
    assert identity["code"] == {}
    assert "t5xpg/data/tasks/table.py" in found.package
    manifest = read_manifest(folder / "data" / "mine")
    assert {split: files[0]["sha256"] for split, files in identity["source"]["splits"].items()} == manifest.identity


def test_a_cache_of_the_table_is_compared_without_tensorflow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=AssertionError("a process was started")))
    found = checked(folder)
    assert found is not None
    assert found == record.read(folder / "cache" / TASK)
    for changes, named in (
        ({"export": {"train": "0" * 64}}, "the split train"),
        ({"vocabulary": BYTES.to_json() | {"extra_ids": 7}}, "vocabulary.extra_ids"),
    ):
        with refused(named, AGAIN):
            checked(folder, **changes)
    monkeypatch.setattr(record, "versions", lambda: {"seqio": "9.0", "beam": "9.0"})
    with refused("seqio", "now 9.0", AGAIN):
        checked(folder)
    monkeypatch.setattr(caching, "package_digests", lambda digest: found.package | {"t5xpg/data/tasks/table.py": "0"})
    with refused("t5xpg/data/tasks/table.py", AGAIN):
        checked(folder)
    completed = folder / "cache" / TASK / "COMPLETED"
    completed.unlink()
    assert checked(folder) is None
    completed.write_text("tfrecord")


@pytest.mark.parametrize("damage", ["flipped", "gone", "another record"])
def test_a_damaged_cache_is_named(folder: Path, damage: str) -> None:
    cache = folder / "cache" / TASK
    path = cache / (record.IDENTITY if damage == "another record" else "train.tfrecord-00007-of-00064")
    content = path.read_bytes()
    path.write_bytes(b"[]" if damage == "another record" else content[:20] + bytes([content[20] ^ 4]) + content[21:])
    if damage == "gone":
        path.unlink()
    try:
        for look in (
            lambda: cache_task(TASK, cache_dir=cache.parent, data_dir=folder / "data"),
            lambda: checked(folder),
        ):
            with refused(str(path), AGAIN):
                look()
    finally:
        path.write_bytes(content)
    assert checked(folder) is not None


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a program in the place of the worker. body: its caching. plan: what it does before it gives the plan."""

    def write(body: str = "", plan: str = "pass") -> None:
        (tmp_path / "stand_in.py").write_text(
            "import os, pathlib, sys, time\n"
            "from t5xpg.base.errors import UserError\n"
            "from t5xpg.data import data_process\n"
            "def start(report):\n"
            "    return {'plan': plan, 'cache': lambda **values: cache(report, **values)}\n"
            "def plan(request):\n"
            f"    {plan}\n"
            "    return [dict(task='t', folder='t', definition={'task': 't'}, package={}, examples=3, versions={},\n"
            "                 up_to_date=False, others=None, note=None)]\n"
            "def cache(report, request, plan):\n"
            "    assert [entry['task'] for entry in plan] == ['t']\n"
            "    out = pathlib.Path(request['output']) / 't'\n"
            "    out.mkdir()\n"
            "    (out / 'COMPLETED').touch()\n"
            f"    {body}\n"
            "data_process.serve(start)\n"
        )

    monkeypatch.setattr(caching, "WORKER", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return write


@pytest.mark.parametrize(
    ("body", "plan", "names"),
    [
        (
            "report(1, ''); print('no disk left', flush=True); os._exit(3)",
            "pass",
            "exit code 3|t.log|no disk left",
        ),
        ("print('[Errno 28] No space left on device', flush=True); 1/0", "pass", "no room|t in"),
        ("pass", "raise UserError('There is no task t.')", "There is no task t."),
        ("pass", "print('No space left on device', flush=True); os._exit(1)", "no room|t in|cache"),
        ("raise OSError(28, 'No space left on device')", "pass", "no room|t in"),
        ("pass", "os.kill(os.getpid(), 9)", "signal 9|memory"),
    ],
)
def test_failures_are_said(tmp_path: Path, worker: Callable[..., None], body: str, plan: str, names: str) -> None:
    worker(body, plan)
    with refused(*names.split("|")):
        cache_task("t", cache_dir=tmp_path / "cache", data_dir=tmp_path)
    assert set(visible(tmp_path / "cache")) <= {"t.log"}


def visible(folder: Path) -> list[str]:
    """What lies in a cache folder, but for what the program remembers there."""
    return sorted(path.name for path in folder.iterdir() if path.name != digest_memory.FOLDER)


def test_an_earlier_cache_stays_until_the_new_one_is_whole(tmp_path: Path, worker: Callable[..., None]) -> None:
    where: dict[str, Any] = {"cache_dir": tmp_path / "cache", "data_dir": tmp_path, "log": lambda line: None}

    def files() -> list[str]:
        return sorted(path.name for path in (tmp_path / "cache" / "t").iterdir())

    worker("(out / 'first').touch(); report(3, '')")
    assert cache_task("t", **where) == {"task": "t"}
    worker("(out / 'second').touch(); report(1, ''); os._exit(1)")
    with refused("exit code 1"):
        cache_task("t", force=True, **where)
    assert files() == ["COMPLETED", "first", "t5xpg_identity.json"]
    worker("(out / 'second').touch(); report(3, '')")
    cache_task("t", force=True, **where)
    assert files() == ["COMPLETED", "second", "t5xpg_identity.json"]


def test_an_interruption_ends_the_process_and_cleans_up(
    tmp_path: Path, worker: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker("report(1, ''); time.sleep(600)")
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def remember(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", remember)
    monkeypatch.setattr(caching.Progress, "advance", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        cache_task("t", cache_dir=tmp_path / "cache", data_dir=tmp_path)
    assert started[0].returncode is not None
    assert visible(tmp_path / "cache") == ["t.log"]


def test_what_killed_processes_left_is_removed(tmp_path: Path, worker: Callable[..., None]) -> None:
    cache = tmp_path / "cache"
    ours = left_by("t.caching", process=os.getpid())
    for name in (left_by("t.caching"), ours, ".t.elsewhere-1.abc.tmp"):
        (cache / name).mkdir(parents=True)
    worker("report(3, '')")
    cache_task("t", cache_dir=cache, data_dir=tmp_path, log=lambda line: None)
    assert visible(cache) == sorted([ours, ".t.elsewhere-1.abc.tmp", "t", "t.log"])


def test_the_second_of_two_waits_for_the_first(tmp_path: Path, worker: Callable[..., None]) -> None:
    worker("report(3, '')")
    said: list[str] = []
    first, place = contextlib.ExitStack(), tmp_path / "cache" / "t"
    lock = tmp_path / "cache" / digest_memory.FOLDER / "t.lock"
    first.enter_context(locks.hold(lock, doing="caching t in cache", instead=""))

    def note(line: str) -> None:
        said.append(line)
        if "Waiting" in line:  # the first one finishes
            place.mkdir()
            (place / "COMPLETED").touch()
            record.Record({"task": "t"}, {}, {}, {}).write(place)
            first.close()

    cache_task("t", cache_dir=tmp_path / "cache", data_dir=tmp_path, log=note)
    assert_named(said[0], [str(os.getpid()), "caching t in cache"])
    assert visible(tmp_path / "cache") == ["t"]


@pytest.mark.parametrize("name", ["a[b", "a*"])
def test_folders_that_seqio_takes_for_patterns_are_refused(tmp_path: Path, name: str) -> None:
    with refused(name, "T5XPG_CACHE_DIR"):
        cache_task("t", cache_dir=tmp_path / name, data_dir=tmp_path)
    assert not list(tmp_path.iterdir())
