from pathlib import Path

import pytest

from t5xpg.base import paths


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of runs, which is not there yet."""
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(tmp_path / "runs"))
    return paths.runs_directory()
