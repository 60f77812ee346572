"""How the checkpoint is named that a run starts from."""

from pathlib import Path

import pytest

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.run.checkpoint.initial_checkpoint import InitialCheckpoint, SavedStep, find_checkpoint


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs: one with checkpoints, one without, below the place where the program is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(tmp_path / "runs"))
    for step in ("4", "12", "8.unfinished", "damaged"):
        (tmp_path / "runs" / "pretrained" / "checkpoints" / step).mkdir(parents=True)
    (tmp_path / "runs" / "begun" / "checkpoints").mkdir(parents=True)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("named", "step"),
    [
        ("pretrained", None),
        ("runs/pretrained/", None),
        ("runs/pretrained/checkpoints", None),
        ("runs/pretrained/checkpoints/4", 4),
        ("pretrained/checkpoints/12", 12),
    ],
)
def test_by_name_and_by_path(runs: Path, named: str, step: int | None) -> None:
    place = find_checkpoint(named)
    assert (place.run.resolve(), place.step) == (runs / "pretrained", step)
    assert place.folder().resolve() == runs / "pretrained" / "checkpoints" / str(step or 12)
    assert find_checkpoint(str(place.run.resolve())) == SavedStep(runs / "pretrained", None)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("pretraind", "there is no run runs/pretraind. Did you mean pretrained?"),
        (
            "csharp_java",
            "there is no run runs/csharp_java. To train it, type `make train "
            f"EXP={paths.EXPERIMENTS}/java_csharp/csharp_java.gin RUN=csharp_java",
        ),
        ("elsewhere/pretrained", "there is no run elsewhere/pretrained."),
        ("~nosuchuser/pretrained", "there is no run ~nosuchuser/pretrained."),
        ("begun", "runs/begun holds no checkpoint. Train it first. Known: pretrained."),
        ("runs/pretrained/checkpoints/8", "runs/pretrained has no checkpoint of step 8; there are: [4, 12]."),
    ],
)
def test_what_is_not_there(named: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        find_checkpoint(named)
    assert str(caught.value).startswith(f"INITIAL_CHECKPOINT: {message}")


def test_a_name_is_needed() -> None:
    with pytest.raises(UserError, match="INITIAL_CHECKPOINT is ' ': expected the name or the folder of a run"):
        InitialCheckpoint(" ")
