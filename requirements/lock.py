"""Resolve pyproject.toml into hashed locks (`make lock`): one for each kind of machine, one for the developers' tools.

The files hold no index address, so that an installation asks the registry that the user has set up. Versions stay as
they are where they can; with `--upgrade` (`make lock UPGRADE=1`) all become the newest that go together.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
UNIVERSAL = ["--universal", "--python-version", "3.11"]
# `apple` is not universal because jax-mps has wheels for one Python only.
APPLE = ["--python-platform", "aarch64-apple-darwin", "--python-version", "3.13", "--extra=apple"]
PROJECT = ["--no-sources", "--overrides=requirements/overrides.txt", "--group=uv", "--group=build", "pyproject.toml"]
LOCKS: dict[str, list[str]] = {
    "cpu": [*UNIVERSAL, *PROJECT],
    "cuda": [*UNIVERSAL, "--extra=cuda", *PROJECT],
    "tpu": [*UNIVERSAL, "--extra=tpu", *PROJECT],
    "apple": [*APPLE, *PROJECT],
    "dev": [*UNIVERSAL, "--constraints=requirements/cpu.txt", "--extra=dev", *PROJECT],
    **{name: ["--no-config", *UNIVERSAL, f"requirements/{name}.in"] for name in ("bench", "fuzz", "bootstrap")},
}
COMMON = ["--generate-hashes", "--no-header", "--no-annotate", "--quiet"]


def entries(text: str) -> list[str]:
    """The packages of a lock, each with its hashes."""
    return [block.rstrip("\n") + "\n" for block in re.split(r"\n(?=[A-Za-z0-9])", text) if block.strip()]


def compile_lock(name: str, arguments: list[str]) -> None:
    """Write requirements/<name>.txt."""
    target = HERE / f"{name}.txt"
    command = ["uv", "pip", "compile", *COMMON, *arguments, "--output-file", str(target)]
    subprocess.run([sys.executable, "-m", *command], check=True, cwd=HERE.parent, stdout=subprocess.DEVNULL)
    # an override excludes it everywhere
    kept = [entry for entry in entries(target.read_text()) if "== 'never'" not in entry.split("\n", 1)[0]]
    if name == "dev":  # what it has beside the lock of a machine
        installed = set(entries((HERE / "cpu.txt").read_text()))
        kept = [entry for entry in kept if entry not in installed]
    target.write_text("".join(kept))
    print(f"requirements/{target.name}")


def main() -> None:
    for name, arguments in LOCKS.items():
        compile_lock(name, [*sys.argv[1:], *arguments])


if __name__ == "__main__":
    main()
