"""The locks: hashed, without addresses, without packages that write over one another, of equal versions everywhere."""

import re
from pathlib import Path

import pytest

from tests.workplace import REPOSITORY

FOLDER = REPOSITORY / "requirements"
LOCKS = sorted(path for path in FOLDER.glob("*.txt") if path.stem != "overrides")
MACHINES = [FOLDER / f"{name}.txt" for name in ("cpu", "cuda", "tpu", "apple")]


def entries(path: Path) -> dict[str, set[str]]:
    """Package to versions: more than one where they differ by Python."""
    found: dict[str, set[str]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", path.read_text()):
        match = re.match(r"([A-Za-z0-9._-]+)==(\S+)", block)
        assert match, block
        assert "--hash=sha256:" in block, f"{path.name}: {match[1]} has no hash"
        found.setdefault(match[1].lower(), set()).add(match[2])
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_locks_are_hashed_and_name_no_address(lock: Path) -> None:
    assert entries(lock)
    assert "://" not in lock.read_text()


def test_versions_are_the_same_on_every_kind_of_machine() -> None:
    base = entries(MACHINES[0])
    for lock in MACHINES:
        names = entries(lock).keys()
        assert not {"seqio-nightly", "tfds-nightly", "mesh-tensorflow"} & names, "they write over the others"
        assert "seqio" in names
        assert {"tensorflow", "tensorflow-cpu"} & names
    for lock in MACHINES[1:]:
        for name, versions in entries(lock).items():
            if name in base:
                # those of the Apple lock, which is for one Python, may be those of another one elsewhere
                assert versions == base[name] or (lock.stem == "apple" and versions < base[name]), (lock.name, name)
    assert "cuda" in " ".join(entries(MACHINES[1]))
    assert "libtpu" in entries(MACHINES[2])
    assert "jax-mps" in entries(MACHINES[3])


def test_what_is_said_of_python_3_11_is_in_the_lock() -> None:
    said = re.search(r"JAX (\S+) at most", (FOLDER / "find_python").read_text())
    assert said
    assert f"\njax=={said[1]} ; python_full_version < '3.12' " in MACHINES[0].read_text()
