"""How the checkpoint is named that a run starts from."""

from pathlib import Path

import pytest

from t5xpg.base import paths
from t5xpg.run.checkpoint.initial_checkpoint import InitialCheckpoint, SavedStep, find_checkpoint
from tests.refusals import refused


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs: one with checkpoints, one without, below the place where the program is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(tmp_path / "runs"))
    for step in ("4", "12", "8.unfinished", "damaged"):
        (tmp_path / "runs" / "pretrained" / "checkpoints" / step).mkdir(parents=True)
    (tmp_path / "runs" / "begun" / "checkpoints").mkdir(parents=True)
    return tmp_path / "runs"


def test_by_name_and_by_path(runs: Path) -> None:
    for named, step in (
        ("pretrained", None),
        ("runs/pretrained/", None),
        ("runs/pretrained/checkpoints", None),
        ("runs/pretrained/checkpoints/4", 4),
        ("pretrained/checkpoints/12", 12),
    ):
        place = find_checkpoint(named)
        assert (place.run.resolve(), place.step) == (runs / "pretrained", step)
        assert place.folder().resolve() == runs / "pretrained" / "checkpoints" / str(step or 12)
        assert find_checkpoint(str(place.run.resolve())) == SavedStep(runs / "pretrained", None)


def test_what_is_not_there() -> None:
    for named, *words in (
        ("pretraind", "runs/pretraind", "Did you mean pretrained?"),
        ("csharp_java", f"EXP={paths.EXPERIMENTS}/java_csharp/csharp_java.gin RUN=csharp_java"),
        ("elsewhere/pretrained", "elsewhere/pretrained"),
        ("~nosuchuser/pretrained", "~nosuchuser/pretrained"),
        ("begun", "runs/begun", "Known: pretrained"),
        ("runs/pretrained/checkpoints/8", "runs/pretrained", "step 8", "[4, 12]"),
    ):
        with refused("INITIAL_CHECKPOINT", *words):
            find_checkpoint(named)
    with refused("INITIAL_CHECKPOINT is ' '"):
        InitialCheckpoint(" ")
    for factor, adapts in ((0.5, False), (-1.0, True), (float("nan"), True)):
        with refused("CROSS_ATTENTION_FACTOR"):
            InitialCheckpoint("pretrained", adapt_decoder=adapts, cross_attention_factor=factor)
