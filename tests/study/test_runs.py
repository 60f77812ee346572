"""How far the runs of a plan have come, from their folders alone."""

from pathlib import Path

import pytest

from t5xpg.base.errors import UserError
from t5xpg.study.runs import Run, check_same_text, outcome
from t5xpg.study.sweep.sweep import Sweep


def test_a_run_has_diverged_where_more_updates_were_not_finite_than_are_passed_over(tmp_path: Path) -> None:
    run = Run("byt5_tiny_demo", tmp_path / "one", "final", {}, ["SKIP_NONFINITE=1"])
    (run.directory.nonfinite / "step_3").mkdir(parents=True)
    assert not outcome(run).diverged
    (run.directory.nonfinite / "step_7").mkdir()
    assert outcome(run).diverged
    assert outcome(run).done


def test_runs_of_different_text_are_not_compared(tmp_path: Path) -> None:
    runs = [Run("byt5_tiny_demo", tmp_path / name, "final", {}, []) for name in ("one", "two")]
    for run, digest in zip(runs, ("00", "11"), strict=True):
        data = {"task": "pydocs_lm", "dataset": "pydocs", "sha256": {"train": digest}}
        run.directory.start("demo", {"data": data}, step=0, command="")
    check_same_text(runs[:1])
    with pytest.raises(UserError, match=r"one and .*two were trained with another text pydocs each"):
        check_same_text(runs)


def test_a_sweep_in_which_a_seed_diverged_is_summed_up(tmp_path: Path) -> None:
    entry = {"recipe": "muon", "candidate": "LEARNING_RATE=9", "loss": [1.25, None], "steps": 700}
    (line,) = Sweep("optimizers_tiny", tmp_path).summary({"final": [entry]})
    assert line == "muon (LEARNING_RATE=9): 1.250, - after 700 steps"
