"""`python -m t5xpg`: prepares the process, then hands over to the command line."""

import faulthandler
import os
import sys

from t5xpg import commands
from t5xpg.base import malloc, signals
from t5xpg.base.errors import UserError
from t5xpg.base.xla_flags import set_xla_flags


def main() -> int:
    """Run the command line; returns the exit code."""
    if len(sys.argv) == 3 and sys.argv[1] == "--from-make":
        try:
            sys.argv[1:] = commands.from_make(sys.argv[2], os.environ)
        except UserError as error:
            sys.exit(f"t5xpg: error: {error}")
    command = commands.COMMANDS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if command and command.computes:
        _with_tuned_malloc()
        set_xla_flags()
        if sys.stderr:
            faulthandler.enable()  # a crash of a library's native code says where it was
    signals.end_with_parent()
    from t5xpg import cli

    code = cli.main()
    if code:  # after a signal or a mistake, do not wait for the other threads, such as a compilation
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _with_tuned_malloc() -> None:
    """Restart this process with malloc's settings, which malloc reads only when a process starts."""
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ:
        return
    os.environ["GLIBC_TUNABLES"] = malloc.TUNABLES
    os.execv(sys.executable, [sys.executable, "-m", "t5xpg", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
