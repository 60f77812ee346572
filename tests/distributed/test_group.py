"""What the processes of a run tell each other."""

import itertools
import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from t5xpg.base.errors import UserError
from t5xpg.base.requested_hosts import RequestedHosts
from t5xpg.base.signals import StopRequest
from t5xpg.distributed import Processes, group, join
from tests.distributed.store import Store
from tests.refusals import assert_named, refused

COUNT = 3


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(group, "_REASON_SECONDS", 0.3)


def in_each(work: Callable[[Processes], Any], store: Store | None = None) -> list[Any]:
    store = store or Store(COUNT)
    processes = [Processes(store, process, COUNT) for process in range(COUNT)]
    with ThreadPoolExecutor(COUNT) as pool:
        return list(pool.map(work, processes))


def test_broadcast_gather_and_barrier() -> None:
    store = Store(COUNT)

    def work(processes: Processes) -> Any:
        said = f"of {processes.process}".encode()
        first = processes.broadcast("name", said)
        gathered = processes.gather("name", said)
        again = processes.gather("name", said * 2)
        processes.barrier("name")
        return first, gathered, again

    found = in_each(work, store)
    assert found[0] == (b"of 0", [b"of 0", b"of 1", b"of 2"], [b"of 0of 0", b"of 1of 1", b"of 2of 2"])
    assert found[1:] == [(b"of 0", [], [])] * 2
    assert list(store.values) == ["t5xpg/name/1"], "what was gathered is not kept"


@pytest.mark.parametrize("heard_at", list(itertools.combinations_with_replacement((0, 3), 3)))  # processes are alike
def test_all_stop_after_the_same_update(heard_at: tuple[int, int, int]) -> None:
    """An update ends where all have begun it: no process is more than one ahead, as the metrics are read one late."""
    store = Store(COUNT)
    stops = [Processes(store, process, COUNT).follow(StopRequest(), 0) for process in range(COUNT)]
    begun = [0, 0, 0]
    changed = threading.Condition()
    last: list[int] = []

    def hear(process: int) -> None:
        with changed:  # at its own moment, or some time after the others have: it may wait for them until then
            changed.wait_for(lambda: begun[process] > heard_at[process] or bool(store.values), timeout=60)
        stops[process].receive(signal.SIGTERM)
        with changed:
            changed.notify_all()

    def work(process: int) -> None:
        heard = threading.Thread(target=hear, args=(process,))
        heard.start()
        for step in range(1, 1000):
            with changed:
                begun[process] = step
                changed.notify_all()
                # the result of the update before, for which all of them are needed
                assert changed.wait_for(lambda step=step: min(begun) >= step - 1, timeout=60), "it waits for ever"
            if stops[process].reached(step):
                last.append(step)
                heard.join()
                return

    threads = [threading.Thread(target=work, args=(process,)) for process in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(last) == 3
    assert len(set(last)) == 1


def test_a_failure_ends_the_others_with_its_message(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    ended: list[int] = []

    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        ended.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr("threading.excepthook", lambda arguments: None)

    def work(processes: Processes) -> str | None:
        if processes.process == 2:
            return processes.explain(UserError("The file is not there."))
        processes.start()
        processes._watcher.join()
        return None

    assert in_each(work) == [None] * 3
    assert ended == [1, 1]
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2
    for line in said:
        assert_named(line, ["t5xpg: error: Process 2 of 3 (", "The file is not there."])


def test_what_only_follows_from_another_failure_is_explained_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_REASON_SECONDS", 60.0)  # until the one that failed has said so
    broken = ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer [10.0.0.2]:4242")

    def work(processes: Processes) -> str | None:
        return processes.explain(RuntimeError("no such thing") if processes.process == 2 else broken)

    found = in_each(work)
    assert found[2] is None, "its own error is shown"
    for said in found[:2]:
        assert_named(said, ["Process 2 of 3 (", "RuntimeError: no such thing"])


def test_a_process_that_was_lost_without_a_word() -> None:
    store = Store(1)
    said = Processes(store, 0, 2).explain(ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer"))
    assert_named(said or "", ["another process was lost", "UNKNOWN: Gloo"])
    (told,) = store.values.values()
    assert b"Process 0 of 2 (" in told


def test_a_process_that_gives_no_sign_of_life(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv(group.LOST_VARIABLE, "1")
    store, ended = Store(2), threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    store.key_value_set("t5xpg/alive/1", json.dumps([3, "node7"]))
    first = Processes(store, 0, 2)
    first.start()
    assert ended.wait(60)
    first._ended.set()
    first._watcher.join()  # it must not end once more, with the real os._exit
    named = ["Process 1 of 2 (node7)", "for 1 s"]
    assert_named(capfd.readouterr().err, named)
    assert_named(store.values["t5xpg/notice/failed/1"].decode(), named)


def test_the_service_may_be_gone() -> None:
    store = Store(2)
    store.gone = True
    assert Processes(store, 1, 2).explain(KeyboardInterrupt()) is None
    assert b"it was interrupted." in store.values["t5xpg/notice/failed/1"]


def test_what_cannot_be_joined() -> None:
    with refused("nowhere"):
        join(RequestedHosts("nowhere", 2, 5)).__enter__()
