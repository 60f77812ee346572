"""Evaluations of a run side by side: their names, their order, and what one has otherwise than another."""

from pathlib import Path
from typing import Any

import pytest

from t5xpg.run.directory import RunDirectory
from t5xpg.run.evaluations import RECORD, all_of, find, label
from tests.refusals import refused
from tests.written_evaluations import write_evaluation

GREEDY, BEAM = "greedy", "beam 4, alpha 1.0"


def test_none_replaces_another(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    first = write_evaluation(run, {"step": 4000}, decoding=GREEDY)
    write_evaluation(run, {"step": 4000, "split": "test"}, decoding=GREEDY)
    write_evaluation(run, {"step": 4000, "split": "test"}, decoding=BEAM)
    write_evaluation(run, {"step": 4000, "mean_of_checkpoints": 3}, decoding=GREEDY)
    others = {"task": "other/task", "decoding": GREEDY, "lengths": "inputs 128, targets 80"}
    write_evaluation(run, {"step": 4000, "split": "test"}, **others)
    assert [one.folder.name for one in all_of(run)] == [
        "step_4000-test-other_task-greedy-inputs_128_targets_80",
        "mean_of_3_checkpoints_up_to_step_4000-validation-greedy",
        "step_4000-test-beam_4_alpha_1.0",
        "step_4000-test-greedy",
        "step_4000-validation-greedy",
    ]
    assert [label(one.record, first.record) for one in all_of(run)] == [
        "test, other/task, inputs 128, targets 80",
        "validation, mean of 3 checkpoints up to step 4,000",
        "test, beam 4, alpha 1.0",
        "test",
        "validation",
    ]
    again = write_evaluation(run, {"step": 4000, "loss": 1.0}, decoding=GREEDY)
    assert all_of(run)[0].folder == again.folder == first.folder
    assert len(all_of(run)) == 5


def test_the_newest_with_such_values_is_found(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert find(run, step=8) is None
    write_evaluation(run, {"step": 8}, decoding=GREEDY)
    newer = write_evaluation(run, {"step": 8}, decoding=BEAM)
    write_evaluation(run, {"step": 8, "mean_of_checkpoints": 3})
    found = find(run, step=8, mean_of_checkpoints=None)
    assert found is not None
    assert found.folder == newer.folder
    assert find(run, step=4) is None


@pytest.mark.parametrize(("text", "named"), [("{", "line 1"), ("[]", "no object"), ('{"time": 1.0}', "step")])
def test_a_record_that_cannot_be_read(tmp_path: Path, text: str, named: Any) -> None:
    run = RunDirectory(tmp_path)
    folder = write_evaluation(run, {"step": 8}).folder
    (folder / RECORD).write_text(text)
    with refused(str(folder), named, "make eval"):
        all_of(run)
