"""`make help`: all commands, or the variables of some, before `make install` has installed anything.

It needs only Python's standard library, in any version from 3.8 on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import textwrap
from collections.abc import Sequence

from t5xpg.base.errors import nearest
from t5xpg.commands import COMMANDS, GROUPS, Command


def help_page(names: Sequence[str] = (), width: int = 100) -> str:
    """The text of `make help`: all commands, or the variables of those that are named.

    Raises LookupError for a name that is not a command.
    """
    for name in names:
        if name not in COMMANDS:
            raise LookupError(f"make help: there is no target {name}.{nearest(name, COMMANDS)}")
    if not names:
        groups = ((title, [(f"make {one.name}", one.help) for one in group]) for title, group in GROUPS.items())
    else:
        groups = ((f"make {name}: {COMMANDS[name].help}", _variables(COMMANDS[name])) for name in names)
    return "\n\n".join("\n".join([title, *_columns(rows, width)]) for title, rows in groups)


def _variables(command: Command) -> list[tuple[str, str]]:
    """("RUN=FOLDER", "the run directory, …") for each variable of Make."""
    rows = []
    for option in command.options:
        default = option.make_default or option.default
        is_needed = option.required or option.is_argument
        note = f" (default: {default})" if default else " (has to be given)" if is_needed else ""
        rows += [(f"{option.variable}={option.value}", option.help + note)] if option.variable else []
    return rows


def _columns(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Two columns, the second one wrapped."""
    indent = max((len(left) for left, _ in rows), default=0) + 4
    return [
        textwrap.fill(right, width, initial_indent=f"  {left}".ljust(indent), subsequent_indent=" " * indent)
        for left, right in rows
    ]


def main() -> None:
    """`make help`: prints the page on the targets in HELP_ON, or on all."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `make help | head`
    width = 100
    with contextlib.suppress(OSError):  # no terminal
        width = max(60, min(120, os.get_terminal_size().columns))
    try:
        print(help_page(os.environ.get("HELP_ON", "").split(), width))
    except LookupError as error:
        sys.exit(str(error.args[0]))


if __name__ == "__main__":
    main()
