"""A program on a disk that has no room: what it said, and what it left there.

The disk is a tmpfs of some kilobytes more than its content, mounted in a namespace of its own, so that it goes with
the program. Where this process may not mount anything (a container, a user without namespaces), a limit on the size
of any file stands in for it.
"""

import functools
import os
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.workplace import PATIENCE, REPOSITORY

_PAGE = 4096
_SCRIPT = """
size=$1 disk=$2 content=$3 after=$4
shift 4
mount -t tmpfs -o size="$size",mode=755 tmpfs "$disk" && cp -a "$content/." "$disk" || exit 97
"$@" 2>&1
code=$?
cp -a "$disk/." "$after" || exit 98
exit $code
"""


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int
    output: str
    disk: Path  # a copy of what was on the disk at the end


def run_on_small_disk(
    content: Path, command: Sequence[str], environment: Mapping[str, str], *, room: int, largest: int, scratch: Path
) -> Ended:
    """Run `command` on a copy of `content`, mounted at scratch/disk, with `room` bytes left there.

    largest: bytes that a file may have where nothing can be mounted.
    """
    disk, after = scratch / "disk", scratch / "after"
    disk.mkdir(parents=True)
    limit = None
    if namespace():
        after.mkdir()
        size = sum(-(-path.lstat().st_size // _PAGE) * _PAGE for path in content.rglob("*") if path.is_file()) + room
        command = [*namespace(), "sh", "-c", _SCRIPT, "sh", str(size), str(disk), str(content), str(after), *command]
    else:
        shutil.copytree(content, disk, dirs_exist_ok=True, symlinks=True)
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (largest, largest))
    done = subprocess.run(
        command, env=environment, cwd=REPOSITORY, text=True, timeout=PATIENCE, preexec_fn=limit,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode not in (97, 98), done.stdout
    if limit:
        disk.rename(after)
    return Ended(done.returncode, done.stdout, after)


@functools.cache
def namespace() -> list[str]:
    """The command that gives a program mounts of its own; empty where that is not allowed."""
    for way in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        try:
            tried = subprocess.run([*way, "mount", "-t", "tmpfs", "tmpfs", os.sep + "tmp"], capture_output=True)
        except FileNotFoundError:  # no Linux
            return []
        if tried.returncode == 0:
            return way
    return []
