"""Readers of option values for `argparse`: they turn the typed text into a value. Only Python's standard library."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable
from typing import Any


def _reader(problem: str, read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader that applies `read`, which returns None or raises ValueError for a text with this problem."""

    def reader(text: str) -> Any:
        value = None
        with contextlib.suppress(ValueError):
            value = read(text)
        if value is None:
            raise argparse.ArgumentTypeError(f"{ascii(text)[1:-1]} is {problem}")
        return value

    return reader


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else None


def _bytes_of_megabytes(text: str) -> int | None:
    value = _whole(text.replace(".", "", 1)) and float(text)
    return max(1, round(value * 1e6)) if value else None


def _finite_numbers(text: str) -> list[float] | None:
    values = [float(word) for word in text.split(",")]
    return values if all(map(math.isfinite, values)) else None


count = _reader("not a whole number above 0", lambda text: _whole(text) or None)
number = _reader("not a whole number of at least 0", _whole)
megabytes = _reader("not a number of megabytes", _bytes_of_megabytes)
alphas = _reader("no list of numbers (0.2,0.6,1.0)", _finite_numbers)
counts = _reader("no list of whole numbers above 0 (4,5)", lambda text: [count(one) for one in text.split(",")])
seeds = _reader("no list of seeds (0,1,2)", lambda text: [number(one) for one in dict.fromkeys(text.split(","))])
step = _reader(
    "neither a step nor best nor mean:N",
    lambda text: text if text == "best" or (text.startswith("mean:") and _whole(text[5:])) else _whole(text),
)
price = _reader("not a price", lambda text: float(text) if 0 <= float(text) < float("inf") else None)
