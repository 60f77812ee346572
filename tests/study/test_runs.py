"""How far the runs of a plan have come, from their folders alone."""

from pathlib import Path

import pytest

from t5xpg.study.runs import Outcome, StudyRun, check_same_text, outcome
from t5xpg.study.sweep import judged_tasks
from tests.refusals import refused
from tests.written_evaluations import write_evaluation


def test_a_run_has_diverged_where_more_updates_were_not_finite_than_are_passed_over(tmp_path: Path) -> None:
    run = StudyRun("byt5_tiny", tmp_path / "one", "final", {}, ["SKIP_NONFINITE=1"])
    (run.directory.nonfinite / "step_3").mkdir(parents=True)
    assert not outcome(run).diverged
    (run.directory.nonfinite / "step_7").mkdir()
    assert outcome(run).diverged
    assert outcome(run).done


def test_runs_of_different_text_are_not_compared(tmp_path: Path) -> None:
    runs = [StudyRun("byt5_tiny", tmp_path / name, "final", {}, []) for name in ("one", "two")]
    for run, digest in zip(runs, ("00", "11"), strict=True):
        data = {"task": "pydocs_lm", "dataset": "pydocs", "sha256": {"train": digest}}
        run.directory.start("demo", {"data": data}, step=0, command="")
    check_same_text(runs[:1])
    with refused("one", "two", "pydocs"):
        check_same_text(runs)


def test_a_mean_of_checkpoints_is_not_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, found = StudyRun("tiny", tmp_path, "final", {}, []), {"task": "a", "step": 4}
    monkeypatch.setattr(judged_tasks, "outcome", lambda run: Outcome(4))
    write_evaluation(run.directory, {**found, "mean_of_checkpoints": 2})
    assert judged_tasks.evaluation_on(run, "a") is None
    measured = write_evaluation(run.directory, found).record
    assert judged_tasks.evaluation_on(run, "a") == measured
