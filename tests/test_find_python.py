"""Which interpreter `make install` takes, of those that only say which one they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusals import assert_named
from tests.workplace import REPOSITORY

pytestmark = pytest.mark.process


def interpreter(path: Path, version: str, modules: str = "venv ensurepip") -> Path:
    """A Python that counts as another one, with these modules alone."""
    told = f"sys.version_info = ({version.replace('.', ', ')}); util.find_spec = {modules.split()}.count"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!/bin/sh\nshift\nexec '{sys.executable}' -S -c "
        f'"import sys; from importlib import util; {told}; exec(sys.argv.pop(1))" "$@"\n'
    )
    path.chmod(0o755)
    return path


def find(folder: Path, *versions: str, code: int = 0, **variables: str) -> tuple[str, str]:
    """What it printed on both streams, where a home and one folder of programs are all that there is."""
    done = subprocess.run(
        ["/bin/sh", REPOSITORY / "requirements" / "find_python", *versions],
        env={"HOME": str(folder), "PATH": f"{folder}/.pyenv/shims{os.pathsep}{folder}/bin", **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return done.stdout.strip(), done.stderr.strip()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "a home"
    (folder / "bin").mkdir(parents=True)
    return folder


def test_the_newest_jax_first_and_3_11_last(home: Path) -> None:
    for name in ("python3", "python3.12"):  # each is found first, and fails
        interpreter(home / ".pyenv" / "shims" / name, "3.12").write_text("#!/bin/sh\nexit 127\n")
    uv = home / ".local" / "share" / "uv" / "python"
    newer = [
        interpreter(home / "bin" / "python3.13", "3.13"),
        interpreter(home / ".pyenv" / "versions" / "3.12.1" / "bin" / "python3.12", "3.12"),
        interpreter(home / ".pyenv" / "versions" / "3.13.0" / "bin" / "python3.13", "3.13"),
        interpreter(uv / "cpython-3.12" / "bin" / "python3.12", "3.12"),
        interpreter(uv / "cpython-3.13" / "bin" / "python3.13", "3.13"),
    ]
    older = [
        interpreter(home / "bin" / "python3.11", "3.11"),
        interpreter(home / ".pyenv" / "versions" / "3.11.7" / "bin" / "python3.11", "3.11"),
        interpreter(uv / "cpython-3.11" / "bin" / "python3.11", "3.11"),
    ]
    for path in newer:
        assert find(home) == (str(path), "")
        assert find(home, "3.11") == (str(older[0]), "")
        path.unlink()
    for path in older:
        found, said = find(home)
        assert found == str(path)
        assert_named(said, ["3.12 or 3.13", "JAX 0.10.2", "PYTHON=/path"])
        path.unlink()
    nothing, said = find(home, code=1)
    assert nothing == ""
    assert_named(said, ["3.11", "python3-venv"])
    assert "3.13" in find(home, "3.13", code=1)[1]


def test_what_cannot_make_environments_is_passed_over_and_what_is_named_is_taken(home: Path) -> None:
    python3 = interpreter(home / "bin" / "python3", "3.10")
    interpreter(home / "bin" / "python3.12", "3.12", modules="venv")  # Debian's, without python3-venv
    find(home, code=1)
    old = interpreter(home / "bin" / "python3.11", "3.11")
    assert find(home)[0] == str(old)
    interpreter(python3, "3.13")
    assert find(home) == (str(python3), "")
    assert find(home, PYTHON=str(old)) == (str(old), "")
    assert "PYTHON=/nonexistent is no Python" in find(home, code=1, PYTHON="/nonexistent")[1]


def test_other_places_of_pyenv_and_uv(home: Path) -> None:
    pyenv = interpreter(home / "other" / "versions" / "3.12.1" / "bin" / "python3.12", "3.12")
    assert find(home, PYENV_ROOT=str(home / "other"))[0] == str(pyenv)
    uv = interpreter(home / "uv" / "python" / "cpython-3.13" / "bin" / "python3.13", "3.13")
    assert find(home, XDG_DATA_HOME=str(home))[0] == str(uv)
    assert find(home, UV_PYTHON_INSTALL_DIR=str(home / "uv" / "python"))[0] == str(uv)
