"""Resolve pyproject.toml into one hashed lock per kind of machine (`make lock`).

The files hold no index address, so that an installation asks the registry that the user has set up.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
UNIVERSAL = ["--universal", "--python-version", "3.11"]
# name -> (extras, platform options); `apple` is not universal because jax-mps has wheels for one Python only.
LOCKS: dict[str, tuple[list[str], list[str]]] = {
    "cpu": (["dev"], UNIVERSAL),
    "cuda": (["dev", "cuda"], UNIVERSAL),
    "tpu": (["dev", "tpu"], UNIVERSAL),
    "apple": (["dev", "apple"], ["--python-platform", "aarch64-apple-darwin", "--python-version", "3.13"]),
}
COMMON = ["--generate-hashes", "--no-header", "--no-annotate", "--quiet"]


def drop_excluded(text: str) -> str:
    """Remove the entries that an override excludes on every platform: they are never installed."""
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text)
    return "\n".join(block for block in blocks if "== 'never'" not in block.split("\n", 1)[0])


def compile_lock(name: str, arguments: list[str]) -> None:
    target = HERE / f"{name}.txt"
    command = ["uv", "pip", "compile", *COMMON, *arguments, "--output-file", str(target)]
    subprocess.run([sys.executable, "-m", *command], check=True, cwd=HERE, stdout=subprocess.DEVNULL)
    target.write_text(drop_excluded(target.read_text()))
    print(f"requirements/{target.name}")


def main() -> None:
    for name, (extras, platform) in LOCKS.items():
        options = [f"--extra={extra}" for extra in extras]
        compile_lock(
            name,
            ["--overrides=overrides.txt", "--constraints=constraints.txt", *platform, *options, "../pyproject.toml"],
        )
    compile_lock("goldens", [*UNIVERSAL, "goldens.in"])
    compile_lock("bench", [*UNIVERSAL, "bench.in"])
    compile_lock("fuzz", [*UNIVERSAL, "fuzz.in"])
    compile_lock("bootstrap", [*UNIVERSAL, "bootstrap.in"])


if __name__ == "__main__":
    main()
