"""`python -m t5xpg`: prepares the process, then hands over to the command line."""

from __future__ import annotations

import os
import sys

TUNABLES = "glibc.malloc.hugetlb=1"
COMPUTING_COMMANDS = ("train", "eval", "infer", "demo")


def main() -> int:
    """Run the command line; returns the exit code."""
    _with_large_pages()
    from t5xpg import cli

    return cli.main()


def _with_large_pages() -> None:
    """Start again with large pages for malloc, which has to know before it begins.

    XLA's CPU backend spends a third of its time on page faults without them.
    """
    computing = len(sys.argv) > 1 and sys.argv[1] in COMPUTING_COMMANDS
    if sys.platform != "linux" or not computing or "GLIBC_TUNABLES" in os.environ:
        return
    os.environ["GLIBC_TUNABLES"] = TUNABLES
    os.execv(sys.executable, [sys.executable, "-m", "t5xpg", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
