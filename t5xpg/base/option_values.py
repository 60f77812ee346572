"""Readers of option values for `argparse`: they turn the typed text into a value. Only Python's standard library."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable
from typing import Any


def _reader(what: str, read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader that applies `read`, which returns None or raises ValueError for a text that `what` describes."""

    def reader(text: str) -> Any:
        value = None
        with contextlib.suppress(ValueError):
            value = read(text)
        if value is None:
            raise argparse.ArgumentTypeError(f"{ascii(text)[1:-1]} is {what}")
        return value

    return reader


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else None


def _bytes_of_megabytes(text: str) -> int | None:
    found = _whole(text.replace(".", "", 1)) and float(text)
    return max(1, round(found * 1e6)) if found else None


def _finite(text: str) -> list[float] | None:
    found = [float(one) for one in text.split(",")]
    return found if all(map(math.isfinite, found)) else None


count = _reader("not a whole number above 0", lambda text: _whole(text) or None)
number = _reader("not a whole number of at least 0", _whole)
megabytes = _reader("not a number of megabytes", _bytes_of_megabytes)
alphas = _reader("no list of numbers (0.2,0.6,1.0)", _finite)
counts = _reader("no list of whole numbers above 0 (4,5)", lambda text: [count(one) for one in text.split(",")])
seeds = _reader("no list of seeds (0,1,2)", lambda text: [number(one) for one in dict.fromkeys(text.split(","))])
step = _reader(
    "neither a step nor best nor mean:N",
    lambda text: text if text == "best" or (text.startswith("mean:") and _whole(text[5:])) else _whole(text),
)
price = _reader("not a price", lambda text: float(text) if 0 <= float(text) < float("inf") else None)
