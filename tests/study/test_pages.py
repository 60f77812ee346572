"""The pages of sweeps and matrices: the published ones, and those of boards that were changed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from t5xpg.base import paths
from t5xpg.base.files import read_json
from t5xpg.run.results import write_results
from t5xpg.study import kinds, matrix_page, sweep_page
from t5xpg.study.page import Page

BOARDS = [(kind.page, file) for kind in kinds.KINDS for file in paths.EXPERIMENTS.glob(f"*/{kind.page.board_file}")]


@pytest.mark.parametrize(("page", "file"), BOARDS, ids=[file.parent.name for _, file in BOARDS])
def test_published_pages_are_those_of_their_boards(page: Page, file: Path, tmp_path: Path) -> None:
    assert page.differences(file.parent) == []
    write_results(tmp_path / file.name, read_json(file))
    assert (tmp_path / file.name).read_bytes() == file.read_bytes()


@pytest.fixture
def matrix() -> Any:
    return read_json(paths.EXPERIMENTS / "matrix_tiny" / "matrix.json")


def test_cells_that_are_not_done_or_diverged_say_so(matrix: Any) -> None:
    first, second = matrix["cells"][:2]
    nothing = dict.fromkeys(("loss", "unigram", "of_text", "learned"))
    first.update(nothing, done=False)
    second.update(nothing, diverged_at=7)
    matrix["runs_done"] -= 1
    text = matrix_page.PAGE.block(matrix)
    assert "41 of 42 cells are done; the others are shown as -." in text
    row = next(line for line in text.splitlines() if line.startswith("| encoder-decoder | bytes |"))
    assert row.startswith("| encoder-decoder | bytes | - | not finite after step 7 | ")
    assert "| encoder-decoder | span corruption | bytes |" not in text
    assert matrix_page.line(second).endswith("not finite after step 7")


def test_what_is_no_better_than_unigrams_is_not_bold(matrix: Any) -> None:
    learned = next(cell for cell in matrix["cells"] if cell["learned"])
    shown = f"{learned['of_text']['loss']:.3f}"
    assert f"**{shown}** / " in matrix_page.PAGE.block(matrix)
    assert matrix_page.line(learned).endswith(": learned")
    learned["learned"] = False
    assert f"**{shown}** / " not in matrix_page.PAGE.block(matrix)
    assert f"| {shown} / " in matrix_page.PAGE.block(matrix)
    assert matrix_page.line(learned).endswith(": has not learned")


def test_bits_per_byte_compare_language_models_alone(matrix: Any) -> None:
    assert "bits per byte compare LM runs whatever their vocabularies" in matrix_page.PAGE.block(matrix)
    matrix["cells"] = [cell for cell in matrix["cells"] if cell["objective"] != "lm"]
    matrix["left_out"].append({"architecture": "decoder_lm", "objective": "lm", "reason": "For this test."})
    assert "whatever their vocabularies" not in matrix_page.PAGE.block(matrix)
    assert "</sup> For this test." in matrix_page.PAGE.block(matrix)


def test_recipes_with_different_tasks_are_not_drawn() -> None:
    board = read_json(paths.EXPERIMENTS / "ul2_tiny" / "leaderboard.json")
    task = board["final"][0]["validated_on"]
    pictures = sweep_page.PAGE.pictures(board)
    assert set(pictures) == {"steps.svg"}
    assert f"validation loss on {task}, nats per target byte" in pictures["steps.svg"]
    assert "| reference |" in sweep_page.PAGE.block(board)
    board["final"][0]["validated_on"] = "another"
    assert sweep_page.PAGE.pictures(board) == {}
    text = sweep_page.PAGE.block(board)
    assert "The recipes are validated on different tasks: these losses do not compare, and no curve is drawn." in text
    assert "| reference |" not in text


def test_seeds_are_a_band_and_the_metric_has_its_name() -> None:
    board = read_json(paths.EXPERIMENTS / "optimizers_tiny" / "leaderboard.json")
    picture = sweep_page.PAGE.pictures(board)["steps.svg"]
    assert picture.count('<path class="band ') == 4
    assert "mean and range of 3 seeds" in picture
    board |= {"measure": "my_task/bleu", "mode": "max"}
    for entry in board["final"]:
        for curve in entry["curves"].values():
            curve["my_task/bleu"] = curve.pop("nats_per_byte")
    text = sweep_page.PAGE.block(board)
    assert "| recipe | settings | seeds | my_task/bleu after 2,000 steps |" in text
    assert "my_task/bleu, after 2,000 steps: adamw_scale 1.792, " in text.lower(), "the highest first"


def test_a_page_of_nothing_yet_has_no_leaderboard() -> None:
    board = read_json(paths.EXPERIMENTS / "optimizers_tiny" / "leaderboard.json")
    for entry in (*board["final"], board["short"]):
        entry["mean_loss"] = None
    board["runs_done"] = 9
    assert sweep_page.PAGE.pictures(board) == {}
    text = sweep_page.PAGE.block(board)
    assert f"9 of {board['runs']} runs are done; what is missing is left out." in text
    assert "What was tried, once each:" in text
    assert "loss after" not in text


def test_only_what_is_lower_is_bold() -> None:
    assert sweep_page.lowest_bold([1.0, 2.0, None]) == ["**1.000**", "2.000", "-"]
    assert sweep_page.lowest_bold([1.0, 1.0]) == ["1.000", "1.000"]
    assert sweep_page.lowest_bold([1.0]) == ["1.000"]
