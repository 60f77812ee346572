"""`python -m t5xpg`: prepares the process, then hands over to the command line."""

import os
import sys

from t5xpg import commands
from t5xpg.base import signals

# XLA's CPU backend spends a quarter of a step on page faults where malloc does not ask for large pages.
TUNABLES = "glibc.malloc.hugetlb=1"
# Which parts of a program XLA hands to its kernel library on CPUs: products and sums alone. A step of byt5_tiny takes a
# quarter less time so than with the default. Set for this version of jaxlib alone: an unknown flag ends the process.
CPU_FLAGS = "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE"
CPU_FLAGS_FOR_JAXLIB = "0.10.2"


def main() -> int:
    """Run the command line; returns the exit code."""
    if len(sys.argv) == 3 and sys.argv[1] == "--from-make":
        sys.argv[1:] = commands.from_make(sys.argv[2], os.environ)
    command = commands.COMMANDS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if command and command.computes:
        set_cpu_flags()
        _with_large_pages()
    signals.end_with_parent()
    if command and command.name == "train" and len(sys.argv) > 2:
        _start_data_process()
    from t5xpg import cli

    code = cli.main()
    if code:  # a signal or a mistake: what threads are at, such as a compilation, is not waited for
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _start_data_process() -> None:
    """Let TensorFlow load while this process imports JAX, reads the experiment and compiles; unless nothing uses it."""
    if any(argument in ("-h", "--help") or argument.startswith("--recorded") for argument in sys.argv):
        return
    from t5xpg.data.stream import client

    client.start_early()


def set_cpu_flags() -> None:
    """Add to XLA_FLAGS what makes steps on CPUs faster, unless the user has decided it. Before jax is imported."""
    import importlib.metadata

    flags = os.environ.get("XLA_FLAGS", "")
    if "ynn_fusion_type" in flags or importlib.metadata.version("jaxlib") != CPU_FLAGS_FOR_JAXLIB:
        return
    os.environ["XLA_FLAGS"] = f"{flags} {CPU_FLAGS}".strip()


def _with_large_pages() -> None:
    """Start again with large pages for malloc, which has to know before it begins."""
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ:
        return
    os.environ["GLIBC_TUNABLES"] = TUNABLES
    os.execv(sys.executable, [sys.executable, "-m", "t5xpg", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
