"""A whole sweep of a few steps, of recipes with different tasks: searched, killed, gone on with, judged, shown."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from t5xpg.base.files import read_json, write_json
from t5xpg.run.evaluations import find
from t5xpg.study import runs
from t5xpg.study.sweep import judged_tasks
from t5xpg.study.sweep.sweep import Sweep
from tests.refusals import refused
from tests.workplace import EXPERIMENT, PATIENCE, Workplace, make_workplace, wait_until

pytestmark = pytest.mark.process

SPANS, PREFIX_LM = "small_span_corruption_bytes640", "small_prefix_lm_bytes640"
JUDGED = ["small_ul2", PREFIX_LM]
Done = tuple[Workplace, Sweep, str]
PARTS = [f"small_ul2_{one}" for one in ("r1", "r2", "s", "x1", "x2", "x3", "x4")]
PLAN = f"""
[search]
steps = 3
seed = 0

[final]
steps = 4
seeds = [0]
reference = "spans"

[judged]
tasks = {json.dumps(JUDGED)}

[recipes.spans]
title = "Spans"
candidates = ["MIXTURE_OR_TASK_NAME={SPANS}"]

[recipes.prefix_lm]
title = "Prefix LM"
gin_file = "gin/optimizers/muon.gin"
candidates = [
    "MIXTURE_OR_TASK_NAME={PREFIX_LM} WARMUP_STEPS=1 LEARNING_RATE=1e30",
    "MIXTURE_OR_TASK_NAME={PREFIX_LM} WARMUP_STEPS=1 LEARNING_RATE=0.02",
]
"""
SETTINGS = """
VOCAB_SIZE = 640
TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 64}
WARMUP_STEPS = 1
EVAL_PERIOD = 2
include 'gin/objectives/ul2.gin'
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A workplace, its sweep that was stopped once in the middle and called again, and what it printed. The first time
    its runs are jobs, the second time processes."""
    place = make_workplace(tmp_path_factory.mktemp("sweep"))
    place.experiment.write_text(EXPERIMENT + SETTINGS)
    (place.folder / Sweep.plan_file).write_text(PLAN, encoding="utf-8")
    sweep = Sweep(str(place.experiment), place.folder / "runs" / "small")
    command = ("sweep", str(place.experiment), "--jobs=2")
    jobs = ("--launcher=local", "--launcher-options=timeout_min=60")
    with place.start(*command, *jobs) as process:
        wait_until(process, lambda: list(sweep.folder.glob("*/run.json")))
        process.send_signal(signal.SIGTERM)
        printed = process.communicate(timeout=PATIENCE)[0]
        assert process.returncode == 128 + signal.SIGTERM, printed
    return place, sweep, place.run(*command)


def test_it_goes_on_and_does_everything_once(done: Done) -> None:
    place, sweep, printed = done
    best = sweep.best_candidates()
    assert best is not None
    assert best["prefix_lm"].endswith("LEARNING_RATE=0.02")
    assert [run.stage for run in sweep.runs()] == ["search", "search", "final", "final"]
    for run in sweep.runs():
        found = runs.outcome(run)
        assert found.done
        assert found.diverged == ("1e30" in run.name)
    for run in sweep.long_runs(best):
        for task in JUDGED:
            measured = judged_tasks.evaluation_on(run, task)
            assert measured is not None
            assert (measured["task"], measured["split"], measured["step"]) == (task, "validation", 4)
            assert sorted(measured.get("tasks", {})) == (PARTS if task == "small_ul2" else [])
    assert f"make report EXP={place.experiment}" in printed
    before = {file: file.stat().st_mtime_ns for file in sweep.folder.rglob("*.json*")}
    evaluations = [file for file in before if file.name == "evaluation.json"]
    lost = next(file for file in evaluations if JUDGED[0] in file.parent.name)  # of one task alone
    lost.unlink()
    again = place.run("sweep", str(place.experiment))
    assert again.count("written to ") == 1, "one was lost, and one is measured again"
    written = {file for file in before if file.stat().st_mtime_ns != before[file]}
    assert {file for file in written if file.parent == lost.parent} == written


def test_the_board_has_what_was_found(done: Done) -> None:
    place, sweep, _ = done
    place.run("report", str(place.experiment))
    board = read_json(place.folder / "leaderboard.json")
    assert board.keys() == sweep.collect(sweep.runs()).keys()
    assert (board["runs"], board["runs_done"]) == (4, 4)
    assert [(one["chosen"], one["diverged_at"] is None) for one in board["search"]] == [(False, False), (True, True)]
    assert board["reference"]["loss"] == board["final"][0]["mean_loss"] == board["final"][0]["loss"][0]
    assert [entry["validated_on"] for entry in board["final"]] == [SPANS, PREFIX_LM]
    assert board["final"][1]["steps_to_reference"] == [None], "validated on another task"
    assert 4 < board["final"][0]["target_tokens_per_step"] <= 4 * 64
    spans, prefix_lm = (board["judged"]["recipes"][name] for name in ("spans", "prefix_lm"))
    assert (spans["task"], prefix_lm["task"]) == (SPANS, PREFIX_LM)
    for one in (spans, prefix_lm):
        assert (one["rows"], one["lengths"], one["seeds"]) == (4, {"inputs": 64, "targets": 64}, [0])
        assert all(one["loss"][task]["mean"] == one["loss"][task]["seeds"][0] > 0 for task in JUDGED)
    # 4 rows of 4 steps; the text of a row of span corruption is 73 tokens (one span of 11), bytes all but its end
    assert 0.8 * 16 * 73 <= spans["text_bytes"] <= 16 * 73
    # the rest of a text is text but for its end, and so is its beginning
    assert spans["target_tokens"] < prefix_lm["target_tokens"] <= 16 * 64
    assert prefix_lm["target_tokens"] - 16 <= prefix_lm["text_bytes"] <= 16 * (63 + 64)


def test_runs_of_changed_code_are_not_published(done: Done, tmp_path: Path) -> None:
    sweep = Sweep(done[1].experiment, shutil.copytree(done[1].folder, tmp_path / "runs"))
    directory = sweep.runs()[0].directory
    record = directory.read()
    record["starts"][-1]["git"]["clean"] = False
    write_json(directory.run_json, record)
    with refused("commit"):
        sweep.publish()


def test_what_is_missing_is_left_out(done: Done, tmp_path: Path) -> None:
    sweep = Sweep(done[1].experiment, shutil.copytree(done[1].folder, tmp_path / "runs"))
    searched, _, spans, prefix_lm = sweep.runs()
    measured = find(spans.directory, task=JUDGED[0])
    assert measured is not None
    shutil.rmtree(measured.folder)
    spans.file_beside("text.json").unlink()
    board = sweep.collect(sweep.runs())
    found = board["judged"]["recipes"]["spans"]
    assert (found["loss"][JUDGED[0]], found["text_bytes"]) == ({"seeds": [], "mean": None, "parts": {}}, None)
    assert f"| `{JUDGED[0]}` | - | " in sweep.page.block(board)
    # killed before its last checkpoint; without it; without the run that chose among its candidates
    for path, runs_done in ((prefix_lm.directory.checkpoints / "4", 3), (prefix_lm.path, 3), (searched.path, 1)):
        shutil.rmtree(path)
        board = sweep.collect(sweep.runs())
        assert (board["runs"], board["runs_done"]) == (4, runs_done)


def test_tasks_that_cannot_be_measured_are_refused_before_training(done: Done) -> None:
    place, sweep, _ = done
    for task, named in (("small_prefix_lm_byte640", "Did you mean small_pr"), ("small_prefix_lm", "[judged] tasks")):
        sweep.plan_path.write_text(PLAN.replace(json.dumps(JUDGED), json.dumps([task])), encoding="utf-8")
        try:
            place.refused("sweep", str(place.experiment), "--run=other", words=[task, named])
        finally:
            sweep.plan_path.write_text(PLAN, encoding="utf-8")
    assert not list((place.folder / "runs" / "other").glob("*/run.json"))
