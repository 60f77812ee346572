from pathlib import Path

import pytest

from t5xpg.base import environment
from tests.workplace import git


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a tracked t5xpg/__init__.py, in a folder with a space."""
    folder = tmp_path / "a checkout"
    (folder / "t5xpg").mkdir(parents=True)
    (folder / "t5xpg" / "__init__.py").touch()
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_git_state(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.git_state(tmp_path) is None
    state = environment.git_state(checkout)
    assert state is not None
    assert len(state["commit"]) == 40
    assert state["clean"] is True
    published = checkout / "experiments" / "mine"
    published.mkdir(parents=True)
    for name in ("README.md", "results.json", "curve.svg"):  # pages are no code
        (published / name).touch()
    assert environment.git_state(checkout) == state
    (checkout / "next.gin").touch()  # of the next experiment, which this one does not read
    assert environment.git_state(checkout) == {"commit": state["commit"], "clean": False}
    assert environment.git_state(checkout, read=[published / "mine.gin", tmp_path / "outside.gin"]) == state
    assert environment.git_state(checkout, read=[checkout / "next.gin"]) != state
    (checkout / "next.gin").unlink()
    (checkout / "t5xpg" / "new.py").touch()
    assert environment.git_state(checkout, read=[]) != state
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as inside a hook of another repository
    assert environment.git_state(checkout) == {"commit": state["commit"], "clean": False}
    monkeypatch.delenv("GIT_DIR")
    git(checkout, "rm", "-q", "--cached", "t5xpg/__init__.py")  # a package inside somebody else's repository
    assert environment.git_state(checkout) is None
    monkeypatch.setenv("PATH", str(tmp_path))  # no git
    assert environment.git_state(checkout) is None


def test_the_state_that_an_image_was_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789" * 4
    for said, clean in ((commit, True), (f"{commit}+", False)):
        monkeypatch.setenv("T5XPG_REVISION", said)
        assert environment.git_state() == {"commit": commit, "clean": clean}
