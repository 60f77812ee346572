"""Runs in a store: every interruption leaves the former or the next state, and nobody writes over another."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from t5xpg.base import paths, stores
from tests.refusals import refused

URL = "memory://bucket/runs/mine"
Machine = Callable[[str], Path]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The mirror of the run on the machine of a name; the store is empty."""

    def on(name: str) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        return paths.run_directory(URL)

    monkeypatch.setattr(MemoryFileSystem, "store", {})
    return on


def write(folder: Path, **texts: str) -> None:
    """Files of a run: metrics="…", checkpoint_8="…"."""
    for name, text in texts.items():
        step = name.removeprefix("checkpoint_")
        path = folder / ("metrics.jsonl" if step == name else f"checkpoints/{step}/params")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("[!.]*"))
        if path.is_file()
    }


def stored() -> set[str]:
    """The files of the state of the store."""
    return set(stores.Mirror(Path("unused"), URL)._state().files)


def objects() -> dict[str, bytes]:
    """All that lies in the store."""
    return {name: file.getvalue() for name, file in MemoryFileSystem.store.items()}


def test_an_address_is_that_of_its_mirror(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = machine("one")
    assert paths.url_of(folder) == URL
    assert paths.url_of(Path("runs/mine")) is None
    monkeypatch.setenv("T5XPG_RUNS_DIR", "memory://bucket/runs/")
    assert paths.run_directory("mine") == folder
    assert paths.local("file:///tmp/runs") == Path("/tmp/runs")
    with refused("s3://bucket/../elsewhere"):
        paths.local("s3://bucket/../elsewhere")
    for name in (os.fsdecode(b"\xff"), os.fsdecode(b"runs/\xff"), os.fsdecode(b"s3://bucket/\xff")):
        with refused(r"\udcff", "UTF-8"):
            paths.run_directory(name)


def test_what_one_machine_pushes_another_one_pulls(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder := machine("one"), metrics="1\n", checkpoint_1="a")
    (folder / "checkpoints/2.unfinished").mkdir()
    (folder / "checkpoints/2.unfinished/params").write_text("half")
    (folder / ".lock").touch()
    stores.push(folder)
    assert stored() == {"metrics.jsonl", "checkpoints/1/params"}
    stores.pull(other := machine("other"))
    assert contents(other) == {"metrics.jsonl": "1\n", "checkpoints/1/params": "a"}
    said = capsys.readouterr()
    assert (said.out, said.err.count("2 files")) == ("", 1)  # the standard output is the command's
    # it goes on there; an earlier checkpoint goes here too, with its folder
    write(other, metrics="1\n2\n", checkpoint_2="b")
    (other / "checkpoints/1/params").unlink()
    stores.push(other)
    assert len(stored()) == 2
    stores.pull(machine("one"))
    assert contents(folder)["metrics.jsonl"] == "1\n2\n"
    assert not (folder / "checkpoints/1").exists()


def test_one_file_of_each_name_is_read_and_records_can_be_left_for_later(machine: Machine) -> None:
    write(folder := machine("one"), metrics="1\n", checkpoint_1="a")
    stores.push(folder)
    other = machine("other")
    stores.pull_all(paths.local("memory://bucket/runs"), lambda name: "params" not in name)
    assert contents(other) == {"metrics.jsonl": "1\n"}
    write(other, metrics="2\n")
    stores.push(other)  # without removing what was not pulled
    stores.pull(other)
    assert contents(other) == {"metrics.jsonl": "2\n", "checkpoints/1/params": "a"}
    machine("one")
    stores.pull(folder)
    write(folder, metrics="2\n", checkpoint_1="b")  # trained again
    stores.push(folder)
    machine("other")
    stores.pull_all(paths.local("memory://bucket/runs"), lambda name: "params" not in name)
    stores.push(other)
    stores.pull(other)
    assert contents(other) == {"metrics.jsonl": "2\n", "checkpoints/1/params": "b"}, "not what was pulled before"
    stores.remove(other)
    assert not MemoryFileSystem.store
    with refused("nothing"):
        stores.pull(other)


class KilledError(BaseException):
    pass


@contextmanager
def killed_after(count: int, name: str) -> Iterator[None]:
    """In the block the store is asked `count` times to do what its method `name` does; the next time is a kill."""
    method, left = getattr(MemoryFileSystem, name), iter(range(count))

    def dying(self: Any, *arguments: Any, **named: Any) -> None:
        if next(left, None) is None:
            raise KilledError
        method(self, *arguments, **named)

    with mock.patch.object(MemoryFileSystem, name, dying):
        yield


def test_a_push_that_ends_anywhere_leaves_a_whole_state(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_TRANSFERS", 1)
    former: dict[str, str] = {}
    reached = 0
    for round in range(1, 4):
        folder = machine("one")
        write(folder, metrics="".join(f"{n}\n" for n in range(round)), **{f"checkpoint_{round}": str(round)})
        (folder / "checkpoints" / str(round - 2) / "params").unlink(missing_ok=True)
        now = contents(folder)
        for allowed in range(10):
            try:
                with killed_after(allowed, "pipe_file"):
                    stores.push(machine("one"))
            except KilledError:
                found = former
            else:
                found = now
            stores.pull(fresh := machine(f"fresh_{round}_{allowed}"))
            assert contents(fresh) == found
            stores.pull(machine("one"))
            assert contents(folder) == now, "what is here and not stored was changed"
            if found is now:
                reached += 1
                break
        former = now
    assert reached == 3
    assert len(stored()) == len(former)


@pytest.mark.parametrize("doing", ["pushes", "begins", "begins anew"])
def test_killed_between_the_manifest_and_its_record(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    """What is not stored yet stays: what a training went on to write while it pushed; and where it names itself
    as the trainer, also anew, the store emptied and the record deleted."""
    write(folder := machine("one"), metrics="1\n", checkpoint_1="a")
    stores.push(folder)
    write(folder, metrics="1\n2\n", checkpoint_2="b")
    if doing == "begins anew":
        MemoryFileSystem.store.clear()
        (folder / ".t5xpg_store.json").unlink()
    write_manifest = stores.Mirror._write_manifest

    def then_die(*arguments: Any) -> None:
        write_manifest(*arguments)
        if doing == "pushes":
            write(folder, metrics="1\n2\n3\n", checkpoint_3="c")
        raise KilledError

    monkeypatch.setattr(stores.Mirror, "_write_manifest", then_die)
    with pytest.raises(KilledError):
        stores.push(folder) if doing == "pushes" else stores.Uploads(folder).begin()
    now = contents(folder)
    stores.pull(folder)
    assert contents(folder) == now


@pytest.mark.parametrize("allowed", range(6))
def test_a_removal_that_ends_anywhere_removes_the_whole_run(machine: Machine, allowed: int) -> None:
    write(folder := machine("one"), metrics="1\n", checkpoint_1="a")
    stores.push(folder)
    write(folder, metrics="1\n2\n", checkpoint_2="b")
    stores.push(folder)
    with killed_after(allowed, "rm_file"), pytest.raises(KilledError):
        stores.remove(folder)
    stores.pull(fresh := machine("fresh"))
    assert not contents(fresh), "an earlier state is there again"
    with refused("holds nothing any more"):
        machine("one")
        stores.pull(folder)
    assert set(contents(folder)) == {"metrics.jsonl", "checkpoints/1/params", "checkpoints/2/params"}
    stores.remove(folder)
    assert not MemoryFileSystem.store
    with stores.Uploads(fresh := machine("another")) as uploads:  # the same name may be trained again
        uploads.begin()
        write(fresh, metrics="3\n")
    assert stored() == {"metrics.jsonl"}


def test_nothing_is_overwritten_and_nothing_deleted(machine: Machine) -> None:
    before = dict[str, bytes]()
    write(folder := machine("one"), metrics="0\n", checkpoint_0="a")
    for step in range(1, 4):
        write(folder, metrics=f"{step}\n", **{f"checkpoint_{step}": "a"})
        (folder / f"checkpoints/{step - 1}/params").unlink()
        stores.push(folder)
        assert objects().items() >= before.items()
        before = objects()
    assert stored() == {"metrics.jsonl", "checkpoints/3/params"}


def test_what_a_superseded_trainer_still_sends_has_no_effect(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its PUTs of objects and of a manifest reach the store after its successor has trained on."""
    late: list[tuple[str, bytes]] = []
    put = MemoryFileSystem.pipe_file
    first, second = machine("first"), machine("second")
    machine("first")
    earlier = stores.Uploads(first)
    earlier.begin()
    write(first, metrics="1\n", checkpoint_1="a")
    assert earlier._store is not None
    earlier._store.push(earlier._trainer)
    write(first, metrics="1\nlate\n", checkpoint_2="late")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", lambda self, name, content: late.append((name, content)))
        with refused("others change it"):  # it never sees its own manifest
            earlier._store.push(earlier._trainer)
    machine("second")
    with stores.Uploads(second) as uploads:
        uploads.begin()
        write(second, metrics="1\n2\n", checkpoint_2="b")
    for name, content in late:
        put(MemoryFileSystem(), name, content)
    stores.pull(fresh := machine("fresh"))
    assert contents(fresh) == contents(second) == {
        "metrics.jsonl": "1\n2\n", "checkpoints/1/params": "a", "checkpoints/2/params": "b",
    }  # fmt: skip


def test_a_slow_reader_gets_a_whole_state(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pushes of a run that keeps one checkpoint lie between its first file and its second."""
    write(folder := machine("one"), metrics="1\n", checkpoint_1="a")
    stores.push(folder)
    get, waiting = MemoryFileSystem.get_file, [2, 3]

    def after_pushes(*arguments: Any) -> None:
        while waiting:
            step = waiting.pop(0)
            write(folder, metrics=f"{step}\n", **{f"checkpoint_{step}": "b"})
            (folder / f"checkpoints/{step - 1}/params").unlink()
            machine("one")
            stores.push(folder)
        get(*arguments)

    monkeypatch.setattr(stores, "_TRANSFERS", 1)
    monkeypatch.setattr(MemoryFileSystem, "get_file", after_pushes)
    stores.pull(reader := machine("reader"))
    assert contents(reader) == {"metrics.jsonl": "1\n", "checkpoints/1/params": "a"}
    machine("reader")
    stores.pull(reader)
    assert contents(reader) == contents(folder)


def test_a_silent_store_is_said(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = threading.Event()
    monkeypatch.setattr(stores, "_SILENT_SECONDS", 0.01)
    monkeypatch.setattr(stores.Progress, "print", lambda line: said.set() if "still being read" in line else None)
    monkeypatch.setattr(MemoryFileSystem, "ls", lambda *arguments, **named: said.wait(20) and [])
    stores.pull(machine("one"))
    assert said.is_set()


def test_the_later_of_two_trainers_goes_on_alone(machine: Machine) -> None:
    first, second = machine("first"), machine("second")

    def train_both() -> None:
        machine("first")
        with stores.Uploads(first) as uploads:
            uploads.begin()
            write(first, metrics="1\n", checkpoint_1="a")
            uploads.finish()
            machine("second")
            with stores.Uploads(second) as taking_over:
                assert contents(second) == contents(first)
                taking_over.begin()
                write(second, metrics="1\n2\n", checkpoint_2="b")
            write(first, metrics="1\nother\n", checkpoint_2="other", checkpoint_3="other")

    with refused("trained by another process"):
        train_both()
    stores.pull(fresh := machine("fresh"))
    assert contents(fresh) == contents(second)
    stores.pull(machine("first"))  # what it had not stored is gone: another process has trained on
    assert contents(first) == contents(second)


def test_of_two_that_begin_at_once_one_does_not(machine: Machine) -> None:
    first, second = stores.Uploads(machine("first")), stores.Uploads(machine("second"))
    first.begin()
    with refused("trained by another process"):
        second.begin()
    first.finish()


def test_an_evaluation_elsewhere_does_not_stop_the_training(machine: Machine) -> None:
    with stores.Uploads(folder := machine("one")) as uploads:
        uploads.begin()
        write(folder, metrics="1\n", checkpoint_1="a")
        uploads._store.push(uploads._trainer)  # type: ignore[union-attr]
        stores.pull(other := machine("other"))
        (other / "evaluation.json").write_text("{}")
        stores.push(other)
        write(folder, metrics="1\n2\n")
    stores.pull(fresh := machine("fresh"))
    assert contents(fresh) == contents(folder) | {"evaluation.json": "{}"}


@pytest.mark.parametrize("name", ["evaluation.log", "of the other.log"])
def test_two_that_push_at_once_both_count(machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """They write manifests of one number; of a file that both store, one version is read."""
    write(one := machine("one"), metrics="1\n")
    stores.push(one)
    stores.pull(other := machine("other"))
    (one / "evaluation.log").write_text("of one")
    (other / name).write_text("of the other")
    write_manifest, waiting = stores.Mirror._write_manifest, [True]

    def after_the_other(*arguments: Any) -> None:
        if waiting:
            stores.push(waiting.pop() and machine("one"))
            machine("other")
        write_manifest(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(stores.Mirror, "_write_manifest", after_the_other)
        stores.push(other)
    stores.pull(fresh := machine("fresh"))
    found = contents(fresh)
    assert found[name] == "of the other"
    assert set(found) == {"metrics.jsonl", "evaluation.log", name}


def test_a_training_goes_on_without_a_network_and_ends_with_an_error(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = threading.Semaphore(0)

    def unreachable(*arguments: Any, **named: Any) -> None:
        tried.release()
        raise TimeoutError("no answer")

    def train() -> None:
        with stores.Uploads(folder) as uploads, monkeypatch.context() as patch:
            uploads.begin()
            patch.setattr(MemoryFileSystem, "pipe_file", unreachable)
            for step in "12":
                write(folder, metrics=step)
                uploads.push_soon()
                assert tried.acquire(timeout=20)
            uploads.finish()

    folder = machine("one")
    with refused("no answer", "the same command"):
        train()
    assert capsys.readouterr().out.count("warning: ") == 1
    with stores.Uploads(folder):  # the same command
        pass
    stores.pull(fresh := machine("fresh"))
    assert contents(fresh) == {"metrics.jsonl": "2"}


def test_what_is_damaged_or_cannot_be_is_said(machine: Machine) -> None:
    write(folder := machine("one"), metrics="1\n")
    stores.push(folder)
    memory = MemoryFileSystem()
    (stored_metrics,) = memory.find("/bucket/runs/mine/objects")
    memory.pipe_file(stored_metrics, b"2\n")
    with refused("metrics.jsonl", "damaged"):
        stores.pull(machine("other"))
    memory.rm_file(stored_metrics)
    with refused("metrics.jsonl", "missing"):
        stores.pull(machine("other"))
    (manifest,) = memory.ls("/bucket/runs/mine/manifests", detail=False)
    text = json.loads(memory.cat_file(manifest))
    for entry in {"../x": ["x", 1, "0"]}, {"x": ["../x", 1, "0"]}:
        memory.pipe_file(manifest, json.dumps({**text, "files": entry}).encode())
        with refused("out of the folder"):
            stores.pull(machine("other"))
    with refused("elsewhere://bucket", "s3://"):
        stores.pull(paths.local("elsewhere://bucket"))
