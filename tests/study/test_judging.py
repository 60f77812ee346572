"""A sweep of recipes that are trained on different tasks, and measured on the same ones."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t5xpg.base.errors import UserError
from t5xpg.data.batch import layout_of
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.experiment import config
from t5xpg.run.directory import RunDirectory
from t5xpg.study import board as leaderboard
from t5xpg.study import judged_page, judging, page, plan, sweep, text_read
from tests.workplace import EXPERIMENT, REPOSITORY, Workplace, make_workplace

JUDGED = ["small_ul2", "small_prefix_lm_bytes640"]
SPANS = "small_span_corruption_bytes640"
PARTS = [f"small_ul2_{one}" for one in ("r1", "r2", "s", "x1", "x2", "x3", "x4")]
PLAN = f"""
[search]
steps = 2
seed = 0

[final]
steps = 2
seeds = [0]
reference = "spans"

[judged]
tasks = {json.dumps(JUDGED)}

[recipes.spans]
title = "Spans"
candidates = ["MIXTURE_OR_TASK_NAME=small_span_corruption_bytes640"]

[recipes.prefix_lm]
title = "Prefix LM"
candidates = ["MIXTURE_OR_TASK_NAME=small_prefix_lm_bytes640"]
"""
SETTINGS = """
VOCAB_SIZE = 640
TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 64}
WARMUP_STEPS = 1
EVAL_PERIOD = 2
include 'gin/objectives/ul2.gin'
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workplace, str]:
    """A workplace with a sweep that was judged, and what it printed."""
    place = make_workplace(tmp_path_factory.mktemp("judged"))
    place.experiment.write_text(EXPERIMENT + SETTINGS)
    (place.experiment.parent / plan.FILE_NAME).write_text(PLAN, encoding="utf-8")
    return place, place.run("sweep", str(place.experiment))


def collected(place: Workplace) -> dict[str, Any]:
    found = plan.read(place.experiment.parent / plan.FILE_NAME)
    return leaderboard.collect("small", found, place.folder / "runs" / place.experiment.stem, None)


@pytest.mark.process
def test_every_run_is_measured_on_every_task_once(done: tuple[Workplace, str]) -> None:
    place, printed = done
    folder = place.folder / "runs" / place.experiment.stem
    found = plan.read(place.experiment.parent / plan.FILE_NAME)
    for run in found.final({recipe.name: recipe.candidates[0] for recipe in found.recipes}):
        directory = RunDirectory(folder / run.folder)
        for task in JUDGED:
            measured = judging.of(run, task, folder)
            assert measured is not None
            assert (measured["task"], measured["split"], measured["step"]) == (task, "validation", 2)
            assert sorted(measured.get("tasks", {})) == (PARTS if task == "small_ul2" else [])
        assert directory.evaluation_json.exists() == (run.recipe.name == "prefix_lm"), "its own task is a judged one"
    assert f"small after step 2 on validation of {JUDGED[0]}: loss " in printed
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("evaluation.json")}
    assert len(before) == 4
    lost = sorted(before)[0]
    lost.unlink()
    again = place.run("sweep", str(place.experiment))
    assert again.count("written to ") == 1, "one was lost, and one is measured again"
    assert {file for file in before if file.stat().st_mtime_ns != before[file]} == {lost}


@pytest.mark.process
def test_the_board_has_what_was_measured_and_read(done: tuple[Workplace, str]) -> None:
    board = collected(done[0])
    spans, prefix_lm = (board["judged"]["recipes"][name] for name in ("spans", "prefix_lm"))
    assert (spans["task"], prefix_lm["task"]) == (SPANS, JUDGED[1])
    for one in (spans, prefix_lm):
        assert (one["rows"], one["lengths"], one["seeds"]) == (4, {"inputs": 64, "targets": 64}, [0])
        assert all(one["loss"][task]["mean"] == one["loss"][task]["seeds"][0] > 0 for task in JUDGED)
    # 4 rows of 2 steps; the text of a row of span corruption is 73 tokens (one span of 11), bytes all but its end
    assert 0.8 * 8 * 73 <= spans["text_bytes"] <= 8 * 73
    # the rest of a text is text but for its end, and so is its beginning
    assert spans["target_tokens"] < prefix_lm["target_tokens"] <= 8 * 64
    assert prefix_lm["target_tokens"] - 8 <= prefix_lm["text_bytes"] <= 8 * (63 + 64)


@pytest.mark.process
def test_different_validation_tasks_do_not_compare(done: tuple[Workplace, str]) -> None:
    board = collected(done[0])
    assert [entry["validated_on"] for entry in board["final"]] == [SPANS, JUDGED[1]]
    assert page.pictures(board) == {}
    assert board["final"][1]["steps_to_reference"] == [None]
    text = page.block(board)
    assert "The recipes are validated on different tasks: these losses do not compare, and no curve is drawn." in text
    assert "reference |" not in text.replace("steps to the reference |", "")
    same = copy.deepcopy(board)
    same["final"][0]["validated_on"] = JUDGED[1]
    assert set(page.pictures(same)) == {page.STEPS_FILE}
    assert f"validation loss on {JUDGED[1]}, nats per target byte" in page.pictures(same)[page.STEPS_FILE]
    assert "do not compare" not in page.block(same)


@pytest.mark.process
def test_the_page_marks_the_lowest_loss(done: tuple[Workplace, str]) -> None:
    place, _ = done
    place.run("report", str(place.experiment))
    folder = place.experiment.parent
    assert sweep.check_page(folder) == []
    board = json.loads((folder / sweep.LEADERBOARD_FILE).read_text())
    text = (folder / sweep.README_FILE).read_text(encoding="utf-8")
    assert "| measured on | Spans | Prefix LM |" in text
    for task in JUDGED:
        cells = [board["judged"]["recipes"][name]["loss"][task]["mean"] for name in ("spans", "prefix_lm")]
        shown = [f"**{one:.3f}**" if one == min(cells) else f"{one:.3f}" for one in cells]
        assert f"| `{task}` | {shown[0]} | {shown[1]} |" in text
    assert text.count("| &nbsp;&nbsp;`small_ul2_") == 7
    read = board["judged"]["recipes"]["prefix_lm"]
    counts = f"{read['target_tokens']:,.0f} | {read['text_bytes']:,.0f}"
    assert f"| Prefix LM | `{JUDGED[1]}` | 4 x 64/64 | {counts} |" in text


@pytest.mark.process
def test_what_is_missing_is_left_out(done: tuple[Workplace, str], tmp_path: Path) -> None:
    place, _ = done
    found = plan.read(place.experiment.parent / plan.FILE_NAME)
    folder = tmp_path / "runs"
    shutil.copytree(place.folder / "runs" / place.experiment.stem, folder)
    run = found.final({recipe.name: recipe.candidates[0] for recipe in found.recipes})[0]
    shutil.rmtree(RunDirectory(folder / run.folder).evaluation / JUDGED[0])
    (folder / f"{run.folder}.text.json").unlink()
    board = leaderboard.collect("small", found, folder, None)
    spans = board["judged"]["recipes"]["spans"]
    assert (spans["loss"][JUDGED[0]], spans["text_bytes"]) == ({"seeds": [], "mean": None, "parts": {}}, None)
    there = board["judged"]["recipes"]["prefix_lm"]["loss"][JUDGED[0]]["mean"]
    assert f"| `{JUDGED[0]}` | - | {there:.3f} |" in page.block(board)


@pytest.mark.process
@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("small_prefix_lm_byte640", "There is no task or mixture named small_prefix_lm_byte640. Did you mean small_pr"),
        (
            "small_prefix_lm",
            "[judged] tasks: small_prefix_lm has another vocabulary than small_span_corruption_bytes640",
        ),
    ],
)
def test_tasks_that_cannot_be_measured_are_refused_before_training(
    done: tuple[Workplace, str], task: str, said: str
) -> None:
    place, _ = done
    file = place.experiment.parent / plan.FILE_NAME
    file.write_text(PLAN.replace(json.dumps(JUDGED), json.dumps([task])), encoding="utf-8")
    try:
        printed = place.run("sweep", str(place.experiment), "--run=other", code=1)
    finally:
        file.write_text(PLAN, encoding="utf-8")
    assert said in printed
    assert not list((place.folder / "runs" / "other").glob("*/run.json"))


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--task=small_prefix_lm"], "was trained with another vocabulary than the task has: "),
        (["--task=a/b"], "TASK=a/b: DatasetConfig.mixture_or_task_name is 'a/b': expected a name, without a path."),
    ],
)
def test_a_run_is_measured_on_tasks_of_its_ids_only(done: tuple[Workplace, str], options: list[str], said: str) -> None:
    place, _ = done
    run = next((place.folder / "runs" / place.experiment.stem).glob("prefix_lm,*/run.json")).parent
    bindings = (f"MIXTURE_OR_TASK_NAME={JUDGED[1]}", "TRAIN_STEPS=2", "RANDOM_SEED=0")
    own = [f"--gin.{binding}" for binding in bindings]
    before = sorted(run.rglob("*"))
    printed = place.run("eval", str(place.experiment), *own, f"--run={run}", *options, code=1)
    assert said in printed
    assert [path for path in sorted(run.rglob("*")) if path.name == "evaluation.json"] == [
        path for path in before if path.name == "evaluation.json"
    ]


def test_bytes_of_text_are_those_of_inputs_and_targets() -> None:
    vocabulary = Vocabulary("bytes", extra_ids=10)
    token_bytes = vocabulary.token_bytes()
    sentinel = vocabulary.sentinel_id(0)
    batch = {
        "encoder_input_tokens": np.array([[70, 71, sentinel, 1, 0], [80, 81, 82, sentinel, 1]], np.int32),
        "decoder_target_tokens": np.array([[sentinel, 72, 1], [sentinel, 83, 1]], np.int32),
        "decoder_input_tokens": np.array([[0, sentinel, 72], [0, sentinel, 83]], np.int32),
    }
    assert text_read.bytes_of(batch, layout_of("EncDecFeatureConverter"), token_bytes) == 2 + 1 + 3 + 1
    del batch["encoder_input_tokens"]
    assert text_read.bytes_of(batch, layout_of("LMFeatureConverter"), token_bytes) == 2


@pytest.mark.parametrize("values", ["[]", "[1]", '["a", "a"]', '[""]', '"a"'])
def test_tasks_are_names_each_once(tmp_path: Path, values: str) -> None:
    file = tmp_path / plan.FILE_NAME
    file.write_text(PLAN.replace(json.dumps(JUDGED), values), encoding="utf-8")
    with pytest.raises(UserError, match=r"\[judged\] tasks: "):
        plan.read(file)


def test_only_what_is_lower_is_bold() -> None:
    assert judged_page._marked([1.0, 2.0, None]) == ["**1.000**", "2.000", "-"]
    assert judged_page._marked([1.0, 1.0]) == ["1.000", "1.000"]
    assert judged_page._marked([1.0]) == ["1.000"]


def test_ul2_tiny_compares_at_equal_steps_and_lengths() -> None:
    found = plan.read(REPOSITORY / "experiments" / "ul2_tiny" / plan.FILE_NAME)
    assert len(found.judged) == 3
    compared = []
    for run in found.final({recipe.name: recipe.candidates[0] for recipe in found.recipes}):
        settings = config.settings(config.load("ul2_tiny", *config.split_overrides(" ".join(run.overrides))).experiment)
        assert settings.pop("train_dataset.mixture_or_task_name") in found.judged
        compared.append(settings)
    assert len(compared) == len(found.recipes) == 2
    assert compared[0] == compared[1], "what they are trained on is all that differs"
