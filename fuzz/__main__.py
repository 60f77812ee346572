"""Fuzz every target for a while, one after another (`python -m fuzz --seconds=60`); exits 1 where something was found.

Each target runs in a process of its own under atheris, which goes into `.venv-fuzz` from its own lock. What drives the
code further is kept in `.venv-fuzz/corpus`, so that the next run goes on from there; findings lie in
`.venv-fuzz/findings`. An input that takes ten seconds or two gigabytes is a finding too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / ".venv-fuzz"
LOCK = REPOSITORY / "requirements" / "fuzz.txt"
MEMORY = Path("/dev/shm")
LIMITS = ["-timeout=10", "-rss_limit_mb=2048", "-max_len=4096", "-print_final_stats=1", "-report_slow_units=5"]


def install() -> Path:
    """The packages of the lock for this Python, in a folder beside the environment; returns it."""
    packages = FOLDER / "packages"
    installed = FOLDER / "installed.txt"
    wanted = f"# {sys.implementation.cache_tag}\n{LOCK.read_text()}"
    if not installed.is_file() or installed.read_text() != wanted:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        subprocess.run([*pip, "--target", str(packages), "--require-hashes", "-r", str(LOCK)], check=True)
        installed.write_text(wanted)
    return packages


def fuzz(name: str, seconds: int, packages: Path) -> bool:
    """Run one target; whether it went through without a finding. The fuzzer's log is `.venv-fuzz/<name>.log`."""
    corpus, findings = FOLDER / "corpus" / name, FOLDER / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fuzz.one", name, *LIMITS, f"-max_total_time={seconds}"]
    log = FOLDER / f"{name}.log"
    started = time.monotonic()
    # Inputs are written as files: into memory where the machine has a folder there. The fuzzer ends its process without
    # cleaning up, so that is done here.
    with log.open("ab") as file, tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as place:
        earlier = file.tell()
        command += [f"-artifact_prefix={findings / name}-", str(corpus)]
        path = os.pathsep.join([str(packages), str(REPOSITORY)])
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": place}
        code = subprocess.run(command, env=environment, cwd=REPOSITORY, stdout=file, stderr=file).returncode
    said = log.read_bytes()[earlier:].decode("utf-8", errors="replace")
    count = next((line.split()[-1] for line in said.splitlines() if "number_of_executed_units" in line), "?")
    verdict = "nothing found" if code == 0 else f"FOUND something: see {findings} and the end of {log}"
    print(f"{name:<14} {time.monotonic() - started:6.0f} s {count:>10} inputs  {verdict}", flush=True)
    return code == 0


def main() -> int:
    from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    options = parser.parse_args()
    names = options.targets or list(TARGETS)
    if unknown := sorted(set(names) - set(TARGETS)):
        parser.error(f"there is no target {unknown[0]}; known: {', '.join(TARGETS)}")
    packages = install()
    done = [fuzz(name, max(1, options.seconds // len(names)), packages) for name in names]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
