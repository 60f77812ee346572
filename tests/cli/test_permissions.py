"""A file that may not be read, a folder that may not be written: one message, and nothing is left."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.refusals import assert_named
from tests.workplace import PATIENCE, REPOSITORY

AS_ANOTHER = """
import os, sys
# before anything is given up: the interpreter may lie where only this user can read
from t5xpg import cli
from t5xpg.data.text import export, local_files
from t5xpg.experiment import making

if os.getuid() == 0:  # to whom permissions do not apply
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
raise SystemExit(cli.main(sys.argv[1:]))
"""


@pytest.mark.process
def test_missing_permissions() -> None:
    with tempfile.TemporaryDirectory() as name:  # which another user can reach, as those of pytest are not
        folder = Path(name)
        folder.chmod(0o755)
        for file in ("a.txt", "secret.txt"):
            (folder / file).write_bytes(b"x" * 150 + b"\n")
        (folder / "secret.txt").chmod(0)
        for place, mode in (("data", 0o555), ("open", 0o777)):
            (folder / place).mkdir()
            (folder / place).chmod(mode)
        for place, file, code, named in (
            ("data", "a.txt", 1, "data"), ("open", "secret.txt", 1, "secret.txt"), ("open", "a.txt", 0, ""),
        ):  # fmt: skip
            variables = {"PYTHONPATH": REPOSITORY, "T5XPG_DATA_DIR": folder / place, "PATH": os.environ["PATH"]}
            command = [sys.executable, "-c", AS_ANOTHER, "data", "mine", f"--files=train={file}"]
            done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == code, done.stderr
            assert_named(done.stderr, ["error: Permission denied", named] if code else [])
            left = [path.name for path in (folder / place).rglob("*.json*")]
            assert sorted(left) == ([] if code else ["manifest.json", "train.jsonl"])
