"""A progress line: rewritten in place on a terminal, a plain line now and then anywhere else."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import ClassVar, Self, TextIO

_REDRAW_SECONDS = 0.1  # on a terminal
_LINE_SECONDS = 5.0  # elsewhere
_FIRST_LINE_SECONDS = 1.0  # elsewhere, too: short work prints only its last line, long work soon shows that it moves
_BAR_WIDTH = 24
_FALLBACK_COLUMNS = 80


class Progress:
    """Shows the progress of some work; a context manager.

    On a terminal one line is rewritten, cut to its width: label, bar, percent, count, rate, time left and the note.
    Elsewhere (a file, a pipe, TERM=dumb) a plain line comes at most every five seconds, where the count or the note has
    changed, the first after a second, and one at the end. The rate, and with it the time left, is the mean since the
    first count: the time before it, such as for compilation, says nothing about the rest. total: the count at the end,
    None where unknown.
    unit: the plural of what is counted ("steps"). initial: the count at the start where earlier work is continued.
    stream: by default the standard error at the time.
    """

    _active: ClassVar[list["Progress"]] = []  # the innermost is last: the one whose line stands on the terminal
    _default: ClassVar[TextIO | None] = None  # instead of the standard error

    def __init__(
        self,
        label: str,
        total: int | None,
        unit: str,
        stream: TextIO | None = None,
        *,
        initial: int = 0,
    ) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.count = initial
        self.note = ""
        self._initial = initial
        self._stream = stream or Progress._default or sys.stderr
        self._terminal = is_terminal(self._stream)
        self._interval = _REDRAW_SECONDS if self._terminal else _LINE_SECONDS
        self._lock = threading.RLock()
        self._started = time.monotonic()
        self._next_drawing = self._started
        self._written = (-1, "")  # elsewhere than on a terminal: count and note of the last line
        self._first: tuple[float, int] | None = None  # time and count

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._active.append(self)
        if self._terminal:
            self._draw(self._started)
        else:
            self._next_drawing = self._started + _FIRST_LINE_SECONDS
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        with self._lock:
            self._active.remove(self)
            line = self._last_line(stopped=kind is not None)
            if self._terminal:
                line = "\r" + line[: _columns(self._stream) - 1] + "\x1b[K"
            self._write(line + "\n")

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count `count` more; `note` (loss, name of a file) stands at the end of the line until the next one."""
        self.count += count
        if note:
            self.note = note
        now = time.monotonic()
        self._first = self._first or (now, self.count)
        if now >= self._next_drawing:
            with self._lock:
                self._draw(now)

    @staticmethod
    def print(text: str) -> None:
        """Print lines of text above the progress line that is being shown, if any, else on the standard error."""
        active = Progress._active[-1] if Progress._active else None
        if active is None:
            print(text, file=Progress._default or sys.stderr, flush=True)
            return
        with active._lock:
            if active._terminal:
                active._write("\r\x1b[K")
            print(text, file=active._stream, flush=True)
            if active._terminal:
                active._draw(time.monotonic())

    @classmethod
    @contextlib.contextmanager
    def silenced(cls) -> Iterator[None]:
        """Show nothing on the standard error while the block runs."""
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            Progress._default = nowhere
            try:
                yield
            finally:
                Progress._default = None

    def _draw(self, now: float) -> None:
        self._next_drawing = now + self._interval
        if self._terminal:
            width = _columns(self._stream) - 1
            line = self._line(now, _bar(self.count, self.total, self._stream))
            if len(line) > width:  # the numbers say more than the bar
                line = self._line(now)
            self._write("\r" + line[:width] + "\x1b[K")
        elif (self.count, self.note) != self._written:
            self._written = self.count, self.note
            self._write(self._line(now) + "\n")

    def _line(self, now: float, bar: str = "") -> str:
        parts = [self.label, f"{self.count:,} {self.unit}"]
        if self.total is not None:
            percent = int(100 * _share(self.count, self.total))
            parts[1:] = [bar, f"{percent:3d}%", f"{self.count:,}/{self.total:,} {self.unit}"]
        since, count = self._first or (now, self.count)
        if self.count > count and now > since:
            rate = (self.count - count) / (now - since)
            parts.append(_rate_text(rate, self.unit))
            if self.total is not None and self.total > self.count:
                parts.append(f"{duration((self.total - self.count) / rate)} left")
        return _one_line("  ".join(filter(None, [*parts, self.note])))

    def _last_line(self, *, stopped: bool) -> str:
        seconds = time.monotonic() - self._started
        done = self.count - self._initial
        of_total = f"/{self.total:,}" if stopped and self.total is not None else ""
        text = f"{self.label}  {'stopped at ' if stopped else ''}{self.count:,}{of_total} {self.unit}"
        text += f"  {f'{done:,} of them ' if self._initial else ''}in {duration(seconds)}"
        if done > 0 and seconds >= 1.0:
            text += f" ({_rate_text(done / seconds, self.unit)})"
        return _one_line(text + (f"  {self.note}" if self.note else ""))

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def duration(seconds: float) -> str:
    """A length of time for people: "0.4 s", "45 s", "3 min 20 s", "2 h 05 min", "3 d 4 h"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def is_terminal(stream: TextIO) -> bool:
    """True if lines on `stream` can be rewritten in place."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except ValueError:  # a closed stream
        return False


def _rate_text(rate: float, unit: str) -> str:
    if rate >= 1000:
        return f"{rate:,.0f} {unit}/s"
    if rate >= 0.1:
        return f"{rate:.3g} {unit}/s"
    return f"{duration(1 / rate)} each"


def _share(count: int, total: int) -> float:
    return min(1.0, count / total) if total > 0 else 1.0


def _bar(count: int, total: int | None, stream: TextIO) -> str:
    full = 0 if total is None else int(_share(count, total) * _BAR_WIDTH)
    done, rest = "━", "─"
    try:
        (done + rest).encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        done, rest = "#", "-"
    return done * full + rest * (_BAR_WIDTH - full)


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _columns(stream: TextIO) -> int:
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # no file behind the stream
        columns = 0
    return columns if columns > 0 else _FALLBACK_COLUMNS
