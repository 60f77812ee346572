"""A file that may not be read, a folder that may not be written: one message, and nothing is left."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.workplace import PATIENCE, REPOSITORY, contents

AS_ANOTHER = """
import os, sys
# before anything is given up: the interpreter may lie where only this user can read
from t5xpg import cli
from t5xpg.data.text import export, local_files
from t5xpg.experiment import prepare
if os.getuid() == 0:  # to whom permissions do not apply
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for arguments in sys.argv[1:]:
    print(cli.main(arguments.split()))
"""


@pytest.mark.process
def test_missing_permissions() -> None:
    """Neither a file that may not be read nor a folder that may not be written ends in a traceback."""
    with tempfile.TemporaryDirectory() as name:  # which another user can reach, as those of pytest are not
        os.chmod(name, 0o755)
        try_without_permissions(Path(name))


def try_without_permissions(open_folder: Path) -> None:
    line = b"x" * 150 + b"\n"
    (open_folder / "a.txt").write_bytes(line)
    (open_folder / "secret.txt").write_bytes(line)
    (open_folder / "secret.txt").chmod(0)
    for name, mode in (("data", 0o555), ("open", 0o777)):
        (open_folder / name).mkdir()
        (open_folder / name).chmod(mode)
    before = contents(open_folder) if os.getuid() == 0 else {}
    commands = ["data mine --files=train=a.txt", "data mine --files=train=secret.txt"]
    said = []
    for place in ("data", "open"):
        variables = {"PYTHONPATH": REPOSITORY, "T5XPG_DATA_DIR": open_folder / place, "PATH": os.environ["PATH"]}
        command = [sys.executable, "-c", AS_ANOTHER, *commands]
        done = subprocess.run(command, cwd=open_folder, env=variables, capture_output=True, text=True, timeout=PATIENCE)
        said.append((done.stdout.split()[-2:], done.stderr.splitlines()))
    assert said[0][0] == ["1", "1"], said
    assert all(re.search(r"error: Permission denied \(.*data", line) for line in said[0][1]), said
    assert said[1][0] == ["0", "1"], said
    assert said[1][1][-1] == "t5xpg: error: Permission denied (secret.txt).", said
    assert sorted(path.name for path in (open_folder / "open" / "mine").iterdir()) == ["manifest.json", "train.jsonl"]
    if before:
        shutil.rmtree(open_folder / "open")
        before = {name: value for name, value in before.items() if name != "open"}
        assert contents(open_folder) == before
