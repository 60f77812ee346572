"""What a user can get wrong, said in one message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can mend: the message says what is wrong, where, what was expected, what to do.

    The command line prints the message alone and exits with 1.
    """


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """A sentence that names the known names closest to `name`, or the known ones where none is close.

    Starts with a space, so that it can follow a sentence; empty where nothing is known.
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=count, cutoff=0.6)
    lowered = {known_name.lower(): known_name for known_name in names}
    if not close:
        close = [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=0.6)]
    if close:
        return f" Did you mean {' or '.join(close)}?"
    if not names:
        return ""
    shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return f" Known: {shown}."
