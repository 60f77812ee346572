"""A whole sweep of a few steps: searched, trained, killed, gone on with, published."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from t5xpg.cli import main
from t5xpg.study import board as leaderboard
from t5xpg.study import page, plan, runs, sweep
from tests.workplace import REPOSITORY, Workplace, make_workplace

PLAN = """
[search]
steps = 3
seed = 0

[final]
steps = 4
seeds = [0]
reference = "adamw"

[recipes.adamw]
title = "AdamW"
gin_file = "gin/optimizers/adamw.gin"
candidates = ["WARMUP_STEPS=1 LEARNING_RATE=0.003"]

[recipes.muon]
title = "Muon"
gin_file = "gin/optimizers/muon.gin"
candidates = ["WARMUP_STEPS=1 LEARNING_RATE=0.02", "WARMUP_STEPS=1 LEARNING_RATE=1e30"]
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workplace, str]:
    """A workplace whose sweep was stopped once in the middle and called again, and what it printed."""
    place = make_workplace(tmp_path_factory.mktemp("sweep"))
    (place.experiment.parent / plan.FILE_NAME).write_text(PLAN, encoding="utf-8")
    command = ("sweep", str(place.experiment), "--jobs=2")
    with place.start(*command) as process:
        folder = place.folder / "runs" / place.experiment.stem
        end = time.monotonic() + 120
        while not list(folder.glob("*/run.json")) and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    return place, place.run(*command)


@pytest.mark.process
def test_it_goes_on_and_trains_each_run_once(done: tuple[Workplace, str]) -> None:
    place, printed = done
    folder = place.folder / "runs" / place.experiment.stem
    found = plan.read(place.experiment.parent / plan.FILE_NAME)
    best = leaderboard.best_candidates(found, folder)
    assert best == {"adamw": "WARMUP_STEPS=1 LEARNING_RATE=0.003", "muon": "WARMUP_STEPS=1 LEARNING_RATE=0.02"}
    for run in [*found.search(), *found.final(best)]:
        outcome = runs.outcome(run, folder)
        assert outcome.done(run)
        assert outcome.diverged == ("1e30" in run.candidate)
    assert "make report EXP=" in printed
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("metrics.jsonl")}
    place.run("sweep", str(place.experiment))  # nothing is left to do
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("metrics.jsonl")} == before


@pytest.mark.process
def test_the_page_is_made_from_the_leaderboard(done: tuple[Workplace, str]) -> None:
    place, _ = done
    place.run("report", str(place.experiment))
    folder = place.experiment.parent
    board = json.loads((folder / sweep.LEADERBOARD_FILE).read_text(encoding="utf-8"))
    assert (board["runs"], board["runs_done"]) == (4, 4)
    tried = {one["candidate"]: one for one in board["search"]}
    assert tried["WARMUP_STEPS=1 LEARNING_RATE=0.02"]["chosen"]
    assert tried["WARMUP_STEPS=1 LEARNING_RATE=1e30"]["diverged_at"] is not None
    by_recipe = {entry["recipe"]: entry for entry in board["final"]}
    counted = {entry["target_tokens_per_step"] for entry in board["final"]}
    assert len(counted) == 1, "all recipes see the same batches"
    assert 4 < counted.pop() <= 4 * 32  # of a batch of 4 rows
    assert board["reference"]["loss"] == by_recipe["adamw"]["mean_loss"] == by_recipe["adamw"]["loss"][0]
    text = (folder / sweep.README_FILE).read_text(encoding="utf-8")
    assert f"{by_recipe['muon']['mean_loss']:.3f}" in text
    assert sweep.check_page(folder) == []
    (folder / sweep.README_FILE).write_text(text.replace("Muon", "Moon"), encoding="utf-8")
    assert sweep.check_page(folder) == [
        f"{folder / sweep.README_FILE}: the block is not that of {sweep.LEADERBOARD_FILE}"
    ]


@pytest.mark.process
def test_runs_with_other_settings_are_not_taken_for_those_of_the_plan(done: tuple[Workplace, str]) -> None:
    place, _ = done
    text = place.experiment.read_text(encoding="utf-8")
    place.experiment.write_text(text.replace("BATCH_SIZE = 4", "BATCH_SIZE = 8"), encoding="utf-8")
    try:
        printed = place.run("sweep", str(place.experiment), code=1)
    finally:
        place.experiment.write_text(text, encoding="utf-8")
    assert "train_dataset.batch_size" in printed
    assert "4 in the run, 8 now" in printed


def test_the_steps_to_the_reference_are_the_first_as_low() -> None:
    records = [
        {"step": step, leaderboard.MEASURE: loss} for step, loss in ((0, 6.0), (50, 2.0), (100, 1.4), (150, 1.5))
    ]
    found = runs.Outcome(150, records)
    assert leaderboard._steps_to(found, 1.5) == 100
    assert leaderboard._steps_to(found, 1.0) is None
    assert leaderboard._steps_to(found, None) is None


def test_published_pages_are_those_of_their_leaderboards() -> None:
    for file in REPOSITORY.glob(f"experiments/*/{sweep.LEADERBOARD_FILE}"):
        assert sweep.check_page(file.parent) == []


@pytest.mark.process
def test_a_sweep_half_done_says_so(done: tuple[Workplace, str], tmp_path: Path) -> None:
    place, _ = done
    found = plan.read(place.experiment.parent / plan.FILE_NAME)
    folder = tmp_path / "runs"
    shutil.copytree(place.folder / "runs" / place.experiment.stem, folder)
    best = leaderboard.best_candidates(found, folder)
    assert best is not None
    last = found.final(best)[-1]
    shutil.rmtree(folder / last.folder)
    board = leaderboard.collect("small", found, folder, None)
    assert (board["runs"], board["runs_done"]) == (4, 3)
    assert "3 of 4 runs are done" in page.block(board)
    shutil.rmtree(folder / found.search()[0].folder)
    board = leaderboard.collect("small", found, folder, None)
    assert (board["runs"], board["runs_done"]) == (4, 1)
    assert page.pictures(board) == {}


def test_a_sweep_has_no_cells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "optimizers_tiny", "--cells=*,lm,*"]) == 1
    assert "CELLS=… chooses cells of a matrix.toml" in capsys.readouterr().err
