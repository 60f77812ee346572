import io
import re

import pytest

from t5xpg.base import progress as progress_module
from t5xpg.base.progress import Progress, duration


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(progress_module, "time", fake)
    return fake


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def screen(text: str) -> list[str]:
    """What a terminal shows: a carriage return goes to the line's start, ESC[K clears to its end."""
    lines = []
    for written in text.split("\n"):
        shown, column = "", 0
        for part in re.split(r"(\r|\x1b\[K)", written):
            if part == "\r":
                column = 0
            elif part == "\x1b[K":
                shown = shown[:column]
            else:
                shown = shown[:column] + part + shown[column + len(part) :]
                column += len(part)
        lines.append(shown)
    return lines


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


def test_a_plain_line_that_says_nothing_new_is_left_out(clock: FakeClock) -> None:
    stream = io.StringIO()
    with Progress("sweep", 100, "steps", stream=stream) as progress:
        for second in range(60):
            clock.now += 1
            progress.advance(50 if second == 30 else 0, note="muon")
    assert [line.split()[2] for line in stream.getvalue().splitlines()[:-1]] == ["0/100", "50/100"]


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


def test_rate_is_that_of_the_last_half_minute(clock: FakeClock) -> None:
    stream = io.StringIO()
    with Progress("train", 10_000, "steps", stream=stream) as progress:
        clock.now += 60  # compilation
        progress.advance()
        for _ in range(60):
            clock.now += 1
            progress.advance(10)
    assert " 10 steps/s" in stream.getvalue().splitlines()[-2]


def test_a_terminal_line_is_rewritten_and_cut_to_the_width(
    terminal: Terminal, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "_columns", lambda stream: 60)
    with Progress("train", 10, "steps", stream=terminal) as progress:
        clock.now += 1
        progress.advance(5, note="a note that is longer than what is left of the line\nand has a line end")
        assert screen(terminal.getvalue())[-1].startswith("train  ━━━━────   50%  5/10 steps")
        clock.now += 1
        progress.advance(5)
    assert all(len(line) < 60 for line in screen(terminal.getvalue()))
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith("\n")


def test_a_terminal_is_drawn_ten_times_a_second_and_in_its_characters(terminal: Terminal, clock: FakeClock) -> None:
    terminal.encoding = "ascii"
    with Progress("train", 1000, "steps", stream=terminal) as progress:
        for _ in range(1000):
            clock.now += 0.001
            progress.advance()
    assert terminal.getvalue().count("\r") <= 12
    assert "  ####----  " in terminal.getvalue()
    assert terminal.getvalue().isascii()


def test_text_printed_meanwhile_stands_above_the_line(
    terminal: Terminal, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("train", 4, "steps", stream=terminal) as progress:
        clock.now += 1
        progress.advance(1)
        Progress.print("a message")
        above, line = screen(terminal.getvalue())
        assert (above, "25%" in line) == ("a message", True)
    Progress.print("another")
    assert capsys.readouterr().err == "another\n"


def test_an_error_says_where_it_stopped(clock: FakeClock) -> None:
    stream = io.StringIO()

    def work() -> None:
        with Progress("train", 10, "steps", stream=stream) as progress:
            clock.now += 0.5
            progress.advance(3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert "3/10 steps  in 0.5 s" in stream.getvalue()


def test_a_dumb_terminal_gets_plain_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with Progress("train", 2, "steps", stream=terminal) as progress:
        progress.advance(2)
    assert terminal.getvalue() == "train  2 steps  in 0.0 s\n"


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
    left = [re.search(r"(\d+)/400 .* (\d+) min (\d+) s left", line) for line in stream.getvalue().splitlines()]
    seconds = {int(match[1]): 60 * int(match[2]) + int(match[3]) for match in left if match}
    assert max(seconds) > 190
    assert all(abs(found - (400 - step)) < 0.45 * (400 - step) for step, found in seconds.items())
