"""The error for mistakes of the user, and helpers for its message."""

from __future__ import annotations

import difflib
import functools
import heapq
import re
from collections.abc import Iterable

# Messages quote names and lines of files that anyone may have written. What a terminal would act on (escapes, marks
# that turn the direction of writing) and lone surrogates, which cannot be encoded, are shown as their codes.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MAX_COMPARED = 10_000  # names that are compared
_MAX_NAME_LENGTH = 100
_MAX_PROPOSED = 3  # names that are proposed
_MAX_LISTED = 12  # names that are listed if none is close
_KINDS = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a string"}


class UserError(Exception):
    """A mistake that the user can correct: the message says what is wrong, where, what was expected, what to do.

    The command line prints the message alone and exits with 1. Control characters in the message become visible.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """`text` with control characters (except tabs and line ends) and lone surrogates as escapes: `\\x1b`."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the error's class where the message is empty."""
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def kind_of(value: object) -> str:
    """The kind of a value as JSON calls it, or its class: "null", "a number"."""
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence with the known names that are closest to `name`; if none is close, with all known ones, or a few.

    Starts with a space, so that it can follow a sentence; empty if no name is known.
    """
    # A file may hold more names, and longer ones, than can be compared or shown.
    names = heapq.nsmallest(_MAX_COMPARED, {known_name for known_name in known if len(known_name) <= _MAX_NAME_LENGTH})
    name = str(name)[: _MAX_NAME_LENGTH + 1]
    closest = functools.partial(difflib.get_close_matches, n=_MAX_PROPOSED)
    matches = closest(name, names, cutoff=0.6)
    by_lower_case = {known_name.lower(): known_name for known_name in names}
    if not matches:
        matches = [by_lower_case[match] for match in closest(name.lower(), by_lower_case, cutoff=0.6)]
    if matches:
        return f" Did you mean {' or '.join(map(_on_one_line, matches))}?"
    if not names:
        return ""
    listed = names if len(names) <= _MAX_LISTED else closest(name, names, cutoff=0.0)
    more = f" and {len(names) - len(listed)} more" if len(listed) < len(names) else ""
    return f" Known: {', '.join(map(_on_one_line, listed))}{more}."


def _on_one_line(name: str) -> str:
    """A name for use in a sentence: its line ends and tabs become escapes, too."""
    return re.sub(r"[\t\n]", lambda match: repr(match[0])[1:-1], name)
