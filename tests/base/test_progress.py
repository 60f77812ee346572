import contextlib
import io
import re

import pytest

from t5xpg.base import progress as progress_module
from t5xpg.base.progress import Progress, duration


class FakeClock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(progress_module, "time", fake)
    return fake


class Terminal(io.StringIO):
    encoding = "ascii"

    def isatty(self) -> bool:
        return True


def test_plain_lines_come_at_most_every_interval_and_once_at_the_end(clock: FakeClock) -> None:
    stream = io.StringIO()
    with Progress("train", 100, "steps", stream=stream) as progress:
        for step in range(100):
            clock.now += 0.25
            progress.advance(note=f"loss {step}")
    lines = stream.getvalue().splitlines()
    # after 1 s, then every 5 s of the 25 s, then the end
    assert [line.split()[2] for line in lines[:-1]] == ["4/100", "24/100", "44/100", "64/100", "84/100"]
    assert "4 steps/s  24 s left  loss 3" in lines[0]
    assert "in 25 s (4 steps/s)  loss 99" in lines[-1]


def test_the_rate_is_that_of_the_own_counts_after_the_first(clock: FakeClock) -> None:
    stream = io.StringIO()
    with Progress("train", 1000, "steps", stream=stream, initial=500) as progress:
        for seconds in (90, 10):  # the first count is compiled
            clock.now += seconds
            progress.advance(100)
    first, second, last = stream.getvalue().splitlines()
    assert "left" not in first
    assert "10 steps/s  30 s left" in second
    assert "200 of them in 1 min 40 s (2 steps/s)" in last


def test_a_terminal_line_is_redrawn_ten_times_a_second_below_what_is_printed(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress_module, "_columns", lambda stream: 60)
    terminal = Terminal()
    with Progress("train", 1000, "steps", stream=terminal) as progress:
        for _ in range(1000):
            clock.now += 0.001
            progress.advance(note="longer than what is left of the line\nand with a line end")
        Progress.print("a message")
    *drawn, last = terminal.getvalue().split("\r")
    assert 10 <= terminal.getvalue().count(" steps/s") <= 12
    assert all(len(line.removesuffix("\x1b[K")) < 60 for line in drawn)
    assert "\x1b[Ka message\n" in drawn
    assert last.startswith("train  1,000 steps")
    assert terminal.getvalue().count("\n") == 2
    assert terminal.getvalue().isascii()


def test_an_error_says_where_it_stopped(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")  # which gets plain lines
    stream = Terminal()
    with contextlib.suppress(KeyboardInterrupt), Progress("train", 10, "steps", stream=stream) as progress:
        clock.now += 0.5
        progress.advance(3)
        raise KeyboardInterrupt
    assert "3/10 steps  in 0.5 s" in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_durations() -> None:
    seconds = (0, 9.94, 9.96, 59.4, 59.6, 200, 3599.6, 7500, 86399, 100 * 3600)
    assert " | ".join(map(duration, seconds)) == (
        "0.0 s | 9.9 s | 10 s | 59 s | 1 min 00 s | 3 min 20 s | 1 h 00 min | 2 h 05 min | 1 d 0 h | 4 d 4 h"
    )


def test_an_evaluation_does_not_change_the_time_left_much(clock: FakeClock) -> None:
    stream = io.StringIO()
    with Progress("train", 400, "steps", stream=stream) as progress:
        for step in range(200):
            clock.now += 60.0 if step == 150 else 1.0
            progress.advance()
    lines = stream.getvalue().splitlines()
    left = [re.search(r"(\d+)/400 .* (\d+) min (\d+) s left", line) for line in lines]
    seconds = {int(match[1]): 60 * int(match[2]) + int(match[3]) for match in left if match}
    assert max(seconds) > 190
    assert all(abs(found - (400 - step)) < 0.45 * (400 - step) for step, found in seconds.items())
