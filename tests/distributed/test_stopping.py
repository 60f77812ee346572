"""All processes stop after the same update, whatever each was at when it heard of the request."""

import itertools
import signal
import threading

import pytest

from t5xpg.base.signals import StopRequest
from t5xpg.distributed.group import StopTogether


class Promises:
    """What processes tell each other: who asks waits until all have told."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.told: dict[int, int] = {}
        self.changed = threading.Condition()

    def tell(self, process: int, last: int) -> None:
        with self.changed:
            assert process not in self.told, "promised twice"
            self.told[process] = last
            self.changed.notify_all()

    def all(self) -> list[int]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.told) == self.count, timeout=60)
            return list(self.told.values())


@pytest.mark.parametrize("heard_at", list(itertools.product((0, 3), repeat=3)))
def test_all_stop_after_the_same_update(heard_at: tuple[int, int, int]) -> None:
    """An update ends where all have begun it: no process is more than one ahead, as the metrics are read one late."""
    promises = Promises(3)
    stops = [StopTogether(StopRequest(), 0, lambda last, n=n: promises.tell(n, last), promises.all) for n in range(3)]
    begun = [0, 0, 0]
    changed = threading.Condition()
    last: list[int] = []

    def hear(process: int) -> None:
        with changed:  # at its own moment, or some time after the others have: it may wait for them until then
            changed.wait_for(lambda: begun[process] > heard_at[process] or bool(promises.told), timeout=60)
        stops[process].hear(signal.SIGTERM)
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


def test_who_hears_nothing_goes_on() -> None:
    promises = Promises(1)
    stop = StopTogether(StopRequest(), 5, lambda last: promises.tell(0, last), promises.all)
    assert not any(stop.reached(step) for step in range(6, 10))
    stop.hear(signal.SIGTERM)
    stop.hear(signal.SIGTERM)
    assert promises.told == {0: 10}
    assert stop.reached(10)
