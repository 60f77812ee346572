"""Make `.venv` and install one lock into it (`make install`), or the tools of `make test` and `make lint` beside it.

Needs Python 3.12 or 3.13, or 3.11 with an older JAX, and nothing else.

The packages come from the registry that pip is set up for, each checked against its hash. uv does the work, because it
is several times faster; where it cannot be had, pip does.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
MINIMUM, LIMIT = (3, 11), (3, 14)
# What would not start if it lacked a file or a library of the system.
IMPORTED = ("flax", "jax", "numpy", "optax", "orbax.checkpoint", "pyarrow", "sentencepiece", "seqio", "tensorflow_text")
LOCAL = ["--no-deps", "--no-build-isolation"]


def fail(message: str) -> None:
    print(f"install: error: {message}", file=sys.stderr)
    raise SystemExit(1)


def run(command: list[str], environment: dict[str, str] | None = None) -> bool:
    return subprocess.run(command, env=environment, cwd=REPOSITORY).returncode == 0


def output_of(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY).stdout.strip()


def make_environment(folder: Path) -> Path:
    """Create the virtual environment unless a whole one of this Python is there; returns its interpreter.

    Without the mark of an install that ended, what is there may lack files: it is emptied.
    """
    python = folder / "bin" / "python"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    version_of = [str(python), "-c", "import pip, sys; print('%d.%d' % sys.version_info[:2])"]
    if python.exists() and any(folder.glob(".installed-*")) and output_of(version_of) == version:
        return python
    if not run([sys.executable, "-m", "venv", "--clear", str(folder.resolve())]):  # it may be a link
        shutil.rmtree(folder, ignore_errors=True)
        fail(
            f"Python {version} at {sys.executable} cannot make a virtual environment: its venv or ensurepip module is "
            f"missing (Debian and Ubuntu: the package python{version}-venv). Install it, or name another Python: "
            "make install PYTHON=/path/to/python3"
        )
    return python


def pip_settings(python: Path) -> dict[str, str]:
    """What pip's configuration files say, with underscores in the names: {"global.timeout": "60"}."""
    lines = output_of([str(python), "-m", "pip", "config", "list"]).splitlines()
    pairs = (line.partition("=") for line in lines)
    return {name.replace("-", "_"): value.strip("'\"") for name, _, value in pairs}


def registry_environment(python: Path) -> dict[str, str]:
    """uv reads none of pip's settings: hand over the registry, the certificates and the time-out."""
    environment = dict(os.environ)
    environment.pop("VIRTUAL_ENV", None)
    settings = pip_settings(python)
    handed_over = {
        "UV_DEFAULT_INDEX": os.environ.get("PIP_INDEX_URL") or settings.get("global.index_url"),
        "UV_INDEX": os.environ.get("PIP_EXTRA_INDEX_URL") or settings.get("global.extra_index_url"),
        "SSL_CERT_FILE": os.environ.get("PIP_CERT") or settings.get("global.cert"),
        "UV_HTTP_TIMEOUT": os.environ.get("PIP_DEFAULT_TIMEOUT", "120"),
        # Every file is checked against the lock's hash, so any registry may give it.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    for name, value in handed_over.items():
        if value:
            environment.setdefault(name, value)
    return environment


def installer(python: Path) -> tuple[list[str], dict[str, str]]:
    """The command that installs into the environment, and the variables that it needs."""
    environment = registry_environment(python)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    uv = [str(python), "-m", "uv"]
    if run([*pip, "--require-hashes", "-r", str(HERE / "bootstrap.txt")]) and output_of([*uv, "--version"]):
        quiet = [] if sys.stderr.isatty() else ["--quiet"]
        return [*uv, "pip", "install", *quiet, "--python", str(python)], environment
    print("install: uv is not to be had here; pip takes longer", flush=True)
    return pip, environment


def hashes_of(lock: str) -> dict[str, set[str]]:
    """{"name==version": its hashes} of the text of a lock."""
    packages: dict[str, set[str]] = {}
    for line in lock.splitlines():
        if match := re.match(r"([\w.-]+==[^\s;]+)", line):
            hashes = packages.setdefault(match[1], set())
        elif match := re.match(r"\s+--hash=(\S+)", line):
            hashes.add(match[1])
    return packages


def install_lock(command: list[str], environment: dict[str, str], lock: Path, installed: str) -> None:
    """The packages of a lock, each checked against its hash. installed: the text of the lock that was installed before:
    a version whose hashes are others now is installed again, which an installer would take for the same."""
    before, now = hashes_of(installed), hashes_of(lock.read_text())
    changed = [version.partition("==")[0] for version, hashes in now.items() if before.get(version, hashes) != hashes]
    if "uv" in command:
        again = [f"--reinstall-package={name}" for name in changed]
    else:
        again = ["--force-reinstall"] if changed else []
    if not run([*command, *again, "--no-deps", "--require-hashes", "-r", str(lock)], environment):
        fail(f"the packages of requirements/{lock.name} could not be installed; the lines above say why.")


def install(python: Path, lock: Path, part: str | None = None, installed: str = "") -> None:
    """The packages of a lock and the project itself, or one of them: "packages" or "project". installed: see
    `install_lock`."""
    command, environment = installer(python)
    local = [*command, *LOCAL]
    if part != "project":
        install_lock(command, environment, lock, installed)
        # It has no wheel for Python 3.13.
        if sys.version_info >= (3, 13) and not run([*local, str(HERE / "editdistance")], environment):
            fail("the stand-in for editdistance could not be installed; the lines above say why.")
        # Headers for operations of one's own, 290 MB, which nothing here compiles.
        for folder in python.parents[1].glob("lib/python*/site-packages/tensorflow/include"):
            shutil.rmtree(folder)
        # What is imported is compiled by it; the rest would be 200 MB of bytecode.
        imported = [str(python), "-c", f"import {', '.join(IMPORTED)}"]
        writing = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(imported, capture_output=True, text=True, cwd=REPOSITORY, env=writing)
        if done.returncode:
            fail(f"what was installed cannot be imported:\n{done.stderr.strip()}")
    if part != "packages" and not run([*local, "--editable", str(REPOSITORY)], environment):
        fail("the project itself could not be installed; the lines above say why.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lock", choices=("cpu", "cuda", "tpu", "apple"), help="name of the lock")
    parts = ("packages", "project", "tools")
    parser.add_argument("--part", choices=parts, help="install this alone; tools: into what is installed")
    options = parser.parse_args()
    lock = HERE / f"{options.lock}.txt"
    python_here = f"Python {sys.version.split()[0]} at {sys.executable}"
    if not MINIMUM <= sys.version_info[:2] < LIMIT:
        fail(f"{python_here}: 3.12, 3.13 or 3.11 is needed. Name one: PYTHON=…")
    folder = REPOSITORY / ".venv"
    with alone(folder):
        install_into(folder, lock, options.part, python_here)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait for another install into the same environment, which may be a link."""
    with folder.resolve().with_name(f"{folder.resolve().name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("install: another one is under way; waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def text_of(file: Path) -> str:
    """The text of a file; "" where there is none."""
    return file.read_text() if file.exists() else ""


def install_into(folder: Path, lock: Path, part: str | None, python_here: str) -> None:
    """Make the environment in `folder` and install a lock into it, or a part: see `main`."""
    started = time.monotonic()
    if part == "tools":
        print("install: the tools of `make test` and `make lint` into .venv", flush=True)
        mark, tools = folder / ".installed-dev", HERE / "dev.txt"
        install_lock(*installer(folder / "bin" / "python"), tools, text_of(mark))
        mark.write_text(tools.read_text())
        print(f"install: done in {time.monotonic() - started:.0f} s", flush=True)
        return
    print(f"install: {lock.stem} packages for {python_here} into .venv", flush=True)
    python = make_environment(folder)
    installed = text_of(folder / f".installed-{lock.stem}")
    # One environment holds one lock; the Makefile goes on with the kind of machine that it finds here.
    for other in (*folder.glob(".installed-*"), *folder.glob(".installing-*")):
        if part != "project" or other.name != ".installed-dev":  # the project alone changes no package
            other.unlink()
    begun = folder / f".installing-{lock.stem}"
    begun.write_text(lock.read_text())
    install(python, lock, part, installed)
    begun.rename(folder / f".installed-{lock.stem}")
    print(f"install: done in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
