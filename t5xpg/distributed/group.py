"""The processes that train together, and the messages between them, beside the arrays.

Messages are small texts in the key-value store of JAX's coordination service, which process 0 holds: they need no
compiled program and wait for no device. A process that fails writes a notice there. Every other process looks for
notices once a second, in a thread of its own, and ends with that message, because its main thread may be waiting in a
collective operation that never ends. When a process dies without a notice, process 0 misses its heartbeats. When
process 0 itself dies, the store is gone, and JAX ends the others.
"""

import contextlib
import json
import os
import platform
import re
import sys
import threading
import time
from collections import Counter
from typing import Any

from t5xpg.base.errors import UserError, first_line
from t5xpg.base.signals import StopRequest

LOST_VARIABLE = "T5XPG_LOST_SECONDS"  # seconds without a heartbeat until a process counts as lost
_LOST_SECONDS = 60.0
_HEARTBEATS = 8  # in that time; messages call them "signs of life". JAX's own heartbeats: see `joining`
_POLL_SECONDS = 1.0  # between two polls for notices
_REASON_SECONDS = 5.0  # how long to wait for the reason of a broken connection
_TIMEOUT_MS = 7 * 24 * 3600 * 1000  # a week: another process may have to cache a large task first
_STORE = "t5xpg"
_FAILED, _STOP = f"{_STORE}/notice/failed", f"{_STORE}/notice/stop"
_ALIVE = f"{_STORE}/alive"
# Found in the messages of the errors that collective operations and the store raise when another process is gone.
_BROKEN = re.compile("[Gg]loo|NCCL|UNAVAILABLE|Connection|coordination service|CoordinationService|Barrier")


class StopTogether:
    """A `StopRequest` of several processes, which all stop after the same update: the largest that any promises.

    step: updates begun so far. `receive` is called by a thread that waits for no other process, `reached` by the loop.
    """

    def __init__(self, request: StopRequest, step: int, client: Any, process: int, count: int) -> None:
        self.request = request
        self.announced = False  # whether the others were told of this process's request
        self._signal: int | None = None
        self._begun = step
        self._client, self._process, self._count = client, process, count
        self._lock = threading.Lock()
        self._has_promised = False
        self._last: int | None = None

    def receive(self, number: int) -> None:
        """Note that a process was asked to stop, by a signal, and promise the update that may be beginning here now."""
        self._signal = number
        with self._lock:
            if self._has_promised:
                return
            self._has_promised = True
            begun = self._begun
        self._client.key_value_set(f"{_STORE}/last/{self._process}", str(begun + 1))

    def reached(self, step: int) -> bool:
        """True if the update `step`, just begun, is the last one. Call it after every update."""
        with self._lock:
            self._begun = step
            if not self._has_promised:
                return False
        if self._last is None:
            keys = [f"{_STORE}/last/{process}" for process in range(self._count)]
            self._last = max(int(self._client.blocking_key_value_get(key, _TIMEOUT_MS)) for key in keys)
        return step >= self._last

    @property
    def number(self) -> int | None:
        """The signal that asked any process to stop; None before there is one."""
        return self._signal if self._signal is not None else self.request.number

    def overdue(self, seconds: float) -> bool:
        """False: no process may end without the others."""
        return False


Stop = StopRequest | StopTogether


class Group:
    """The processes of a run; this class is for one. Each process makes the calls of a name in the same order."""

    process, count = 0, 1

    @property
    def first(self) -> bool:
        """True if this is process 0, which writes what only one process writes."""
        return self.process == 0

    def broadcast(self, name: str, value: bytes = b"") -> bytes:
        """The `value` of the first process, in every process; the values of the others are ignored."""
        return value

    def gather(self, name: str, value: bytes) -> list[bytes]:
        """On the first process the values of all, in process order; on the others an empty list, without waiting."""
        return [value]

    def barrier(self, name: str) -> None:
        """Return when all processes have called it."""

    def follow(self, request: StopRequest, step: int) -> Stop:
        """What says when this run stops. request: the signals to this process. step: updates begun so far."""
        return request


class Processes(Group):
    """Several processes. Made by `joining.join`."""

    def __init__(self, client: Any, process: int, count: int) -> None:
        self.process, self.count = process, count
        self._client = client
        self._calls: Counter[str] = Counter()
        self._stop: StopTogether | None = None
        self._ended = threading.Event()
        self._failing = False
        self._lost_seconds = lost_seconds()
        self._beats, self._next_beat = 0, 0.0
        self._last_beats: dict[str, tuple[str, float]] = {}  # of each process, the last heartbeat and its time
        self._watcher = threading.Thread(target=self._watch, name="hosts", daemon=True)

    def broadcast(self, name: str, value: bytes = b"") -> bytes:
        key = self._key(name)
        if self.first:
            self._client.key_value_set_bytes(key, value)
            return value
        return bytes(self._client.blocking_key_value_get_bytes(key, _TIMEOUT_MS))

    def gather(self, name: str, value: bytes) -> list[bytes]:
        key = self._key(name)
        if not self.first:
            self._client.key_value_set_bytes(f"{key}/{self.process}", value)
            return []
        others = range(1, self.count)
        values = [bytes(self._client.blocking_key_value_get_bytes(f"{key}/{other}", _TIMEOUT_MS)) for other in others]
        self._client.key_value_delete(key)
        return [value, *values]

    def barrier(self, name: str) -> None:
        self._client.wait_at_barrier(self._key(name), _TIMEOUT_MS)

    def follow(self, request: StopRequest, step: int) -> Stop:
        self._stop = StopTogether(request, step, self._client, self.process, self.count)
        return self._stop

    def start(self) -> None:
        """Begin to poll for notices."""
        self._watcher.start()

    def close(self) -> None:
        """Wait until the others have ended as well, and stop polling for notices."""
        self.barrier("end")
        self._ended.set()
        self._watcher.join()

    def explain(self, error: BaseException) -> str | None:
        """The reason why another process ended, if that caused `error`; None if this process itself failed.

        Sends `error` to the others, unless another process has already sent its reason.
        """
        broken = not isinstance(error, UserError) and _BROKEN.search(str(error)) is not None
        if broken and (reason := self._reason_of_another()) is not None:
            return reason
        text = str(error).strip() if isinstance(error, UserError) else _error_text(error)
        if broken:
            text = f"The connection to another process was lost, which has probably ended: {first_line(error)}"
        self._fail(text)
        return text if broken else None

    def _key(self, name: str) -> str:
        """The key of the next call of this name: each process counts its own, and all make the same calls."""
        self._calls[name] += 1
        return f"{_STORE}/{name}/{self._calls[name]}"

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            try:
                self._poll()
            except Exception:  # the service has gone: its own client ends this process
                time.sleep(_POLL_SECONDS)

    def _poll(self) -> None:
        notices = dict(self._client.key_value_dir_get(f"{_STORE}/notice/"))
        self._exchange_heartbeats(notices)
        failed = sorted(text for key, text in notices.items() if key.startswith(_FAILED))
        if failed and not self._failing:
            self._end(failed[0])
        stop = self._stop
        if stop is None:
            return
        signal = stop.request.number
        if signal is not None and not stop.announced:
            stop.announced = True
            self._client.key_value_set(f"{_STOP}/{self.process}", str(signal))
            notices[f"{_STOP}/{self.process}"] = str(signal)
        numbers = [int(text) for key, text in sorted(notices.items()) if key.startswith(_STOP)]
        if numbers:
            stop.receive(numbers[0])

    def _exchange_heartbeats(self, notices: dict[str, str]) -> None:
        """Send a heartbeat when it is due. The first process also checks the others' and reports a lost process."""
        now = time.monotonic()
        if now >= self._next_beat:
            self._beats, self._next_beat = self._beats + 1, now + self._lost_seconds / _HEARTBEATS
            beat = json.dumps([self._beats, platform.node()])
            self._client.key_value_set(f"{_ALIVE}/{self.process}", beat, True)
        if not self.first:
            return
        for key, beat in self._client.key_value_dir_get(f"{_ALIVE}/"):
            before, since = self._last_beats.get(key, ("", now))
            if beat != before:
                self._last_beats[key] = (beat, now)
            elif now > since + self._lost_seconds:
                process, host = key.removeprefix(f"{_ALIVE}/"), json.loads(beat)[1]
                notices[f"{_FAILED}/{process}"] = text = (
                    f"Process {process} of {self.count} ({host}) has given no sign of life for "
                    f"{self._lost_seconds:.0f} s: it was killed, or its host cannot be reached. Start all processes "
                    "again: training goes on from the last checkpoint."
                )
                self._client.key_value_set(f"{_FAILED}/{process}", text)
                return

    def _end(self, text: str) -> None:
        """End this process, even if its main thread waits: saved files are whole at any moment."""
        sys.stderr.write(f"t5xpg: error: {text}\n")  # in one piece: other processes may write to the same place
        sys.stderr.flush()
        self._leave()
        os._exit(1)

    def _fail(self, text: str) -> None:
        """Send the others the reason why this process ends."""
        self._failing = True
        with contextlib.suppress(Exception):  # the service has gone
            where = f"Process {self.process} of {self.count} ({platform.node()})"
            self._client.key_value_set(f"{_FAILED}/{self.process}", f"{where} has ended: {text}")
            self._leave()

    def _leave(self) -> None:
        """Wait for the others: the service ends with process 0, which must end after they have read the message."""
        with contextlib.suppress(Exception):
            self._client.wait_at_barrier(f"{_STORE}/parting", int(_REASON_SECONDS * 1000))

    def _reason_of_another(self) -> str | None:
        """The notice of another process that has failed; None if none comes within _REASON_SECONDS."""
        end = time.monotonic() + _REASON_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(Exception):
                reasons = sorted(text for _, text in self._client.key_value_dir_get(f"{_FAILED}/"))
                if reasons:
                    self._failing = True
                    self._leave()
                    return str(reasons[0])
            time.sleep(0.2)
        return None


ALONE = Group()


def lost_seconds() -> float:
    """Seconds without a heartbeat until a process is lost. Raises UserError for a value other than whole seconds."""
    text = os.environ.get(LOST_VARIABLE, "")
    if not text:
        return _LOST_SECONDS
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:9]) < 10**6:
        raise UserError(f"{LOST_VARIABLE} is {text!r}: expected a whole number of seconds.")
    return float(text[:9])


def _error_text(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "it was interrupted."
    return f"{type(error).__name__}: {first_line(error)}"
