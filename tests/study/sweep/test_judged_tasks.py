"""The tasks that the runs of a sweep are measured on."""

from pathlib import Path

import pytest

from t5xpg.base.files import write_json
from t5xpg.study.runs import Outcome, Run
from t5xpg.study.sweep import judged_tasks


def test_a_mean_of_checkpoints_is_not_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, found = Run("tiny", tmp_path, "final", {}, []), {"task": "a", "step": 4}
    monkeypatch.setattr(judged_tasks, "outcome", lambda run: Outcome(4))
    write_json(run.directory.evaluation_json, found)
    assert judged_tasks.evaluation_on(run, "a") == found
    write_json(run.directory.evaluation_json, {**found, "mean_of_checkpoints": 2})
    assert judged_tasks.evaluation_on(run, "a") is None
