"""Facts about the surroundings of a run: versions, machine, state of the source."""

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError

# The files that `make report` writes, and other pages: they change no run.
_PAGES = (":(exclude)*.md", ":(exclude)*.svg", ":(exclude)experiments/*/*.json")
# The libraries that decide a run's numbers; below, the distributions that provide one under another name.
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax", "seqio", "t5", "tensorflow", "numpy", "sentencepiece")
_DISTRIBUTIONS = {"orbax": ("orbax-checkpoint",), "tensorflow": ("tensorflow-cpu", "tensorflow")}


def versions() -> dict[str, str | None]:
    """Versions of Python, of t5xpg and of the libraries that decide a run's numbers; None where not installed.

    They are read from the installed metadata: nothing is imported.
    """
    libraries = {name: version_of(*_DISTRIBUTIONS.get(name, (name,))) for name in _LIBRARIES}
    return {"python": platform.python_version(), "t5xpg": version_of("t5xpg"), **libraries}


def version_of(*distributions: str) -> str | None:
    """The version of the first of these distributions that is installed; None where none is."""
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if version := importlib.metadata.version(name):
                return version
    return None


def require_package(option: str, package: str, install: str = "") -> None:
    """Raise UserError if a package that an option needs is not installed. install: its name for pip, if another."""
    with contextlib.suppress(ModuleNotFoundError):  # its parent package is not installed
        if importlib.util.find_spec(package) is not None:
            return
    command = f".venv/bin/python -m pip install {install or package}"
    raise UserError(f"{option} needs the package {package}, which is not installed: {command}")


def host() -> dict[str, Any]:
    """The machine: {"platform", "cpu", "cores", "memory_bytes"}; unknown values are None.

    "cores" are those that this process may use, which in a container can be fewer than the machine has.
    """
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": _memory_bytes(),
    }


def cpu_model() -> str | None:
    """The processor's name as the system gives it, with family and model: on virtual machines, processors whose results
    differ in the last bits often have the same name."""
    if sys.platform == "darwin":
        return output_of(["sysctl", "-n", "machdep.cpu.brand_string"])
    facts = cpu_facts()
    names = [name for key in ("model name", "Model", "cpu model") if (name := " ".join(facts.get(key, "").split()))]
    numbers = [f"{name} {facts[key]}" for key, name in (("cpu family", "family"), ("model", "model")) if key in facts]
    return ", ".join([*(names[:1] or filter(None, [platform.processor()])), *numbers]) or None


def is_same_cpu(published: str | None, here: str | None) -> bool:
    """True if two values of `cpu_model` may be one kind. Older results name no family: they match every family."""
    return here == published or f"{here}".startswith(f"{published}, family ")


def cpu_facts(file: Path = Path("/proc/cpuinfo")) -> Mapping[str, str]:
    """The system's facts about the first processor: {"model name": …}; empty outside of Linux."""
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    return facts


def usable_cores() -> int:
    """The number of processor cores that this process may use: its affinity, at most a container's limit."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS does not
    cores = len(affinity(0)) if affinity is not None else (os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError):  # no limit of this kind here
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def git_state(folder: Path | None = None, read: Iterable[Path] | None = None) -> dict[str, Any] | None:
    """{"commit": 40 hex digits, "clean": whether the files that count are its own} of the checkout that holds t5xpg.

    None where git is missing, or t5xpg is not tracked in a checkout. read: the files that count, besides the package;
    those outside of the checkout do not; None: all. folder: the root of the checkout, by default where the package
    lies. Untracked files count, as they could be imported; those that git ignores do not, nor do pages and published
    results, which publishing changes. In a container image, T5XPG_REVISION holds the commit that it was made from, with
    a + after it if the tree had changes.
    """
    revision = os.environ.get("T5XPG_REVISION", "")
    if folder is None and re.fullmatch(r"[0-9a-f]{40}\+?", revision):
        return {"commit": revision.rstrip("+"), "clean": not revision.endswith("+")}
    root = paths.PACKAGE.parent if folder is None else folder
    if git("ls-files", "--error-unmatch", "t5xpg/__init__.py", folder=root) is None:
        return None
    commit = git("rev-parse", "HEAD", folder=root)
    if commit is None:  # a repository without a commit
        return None
    inside = (path.resolve() for path in read or ())
    counting = ["."] if read is None else ["t5xpg", *(str(path) for path in inside if path.is_relative_to(root))]
    changes = git("status", "--porcelain", "--", *counting, *_PAGES, folder=root)
    return {"commit": commit, "clean": changes == ""}


def command_line() -> str:
    """The command of this process as one would type it again: `t5xpg` and its arguments, quoted for a shell."""
    return shlex.join(["t5xpg", *sys.argv[1:]])


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):  # names that this system does not know
        return None


def memory_limit() -> int | None:
    """Bytes of memory that this process may have; None where it cannot be found out."""
    limits = [_memory_bytes()]
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min((limit for limit in limits if limit), default=None)


def is_commit(text: object) -> bool:
    """True for the full name of a commit: never an option of git."""
    return re.fullmatch("[0-9a-f]{40,64}", str(text)) is not None


def git(*arguments: str, folder: Path | None = None) -> str | None:
    """The output of git in a checkout, by default this one, as `output_of`."""
    return output_of(["git", "-C", str(folder or paths.REPOSITORY), *arguments])


def output_of(command: Sequence[str]) -> str | None:
    """The output of a command, stripped; None if the command is missing or fails."""
    # inside a git hook, variables such as GIT_DIR point at the hook's repository
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False, env=variables
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None
