"""The pages of sweeps and matrices: the published ones, and those of boards made here."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from t5xpg.base import paths
from t5xpg.base.files import read_json
from t5xpg.run.results import write_results
from t5xpg.study import kinds
from t5xpg.study.matrix_page import PAGE, line
from t5xpg.study.sweep_page import PAGE as SWEEP_PAGE
from t5xpg.study.sweep_page import STEPS_FILE, lowest_bold

BOARDS = [file for kind in kinds.KINDS for file in sorted(paths.EXPERIMENTS.glob(f"*/{kind.page.board_file}"))]

UNIGRAM = {"loss": 3.5, "bits_per_byte": 5.25, "accuracy": 0.1}
OF_TEXT = {"loss": 3.0, "bits_per_byte": 4.5, "accuracy": 0.2}


def cell(architecture: str, objective: str, vocabulary: str, loss: float | None, **more: Any) -> dict[str, Any]:
    done = loss is not None
    return {
        "architecture": architecture,
        "objective": objective,
        "vocabulary": vocabulary,
        "task": f"text_{objective}",
        "done": done,
        "diverged_at": None,
        "steps": 300,
        "seed": 0,
        "rows": 16,
        "lengths": {"targets": 256},
        "packed": False,
        "ids": 384,
        "num_params": 1_234_567,
        "target_tokens": 76_800 if done else None,
        "held_out_target_tokens": 5_000 if done else None,
        "held_out_target_bytes": 4_999 if done else None,
        "loss": loss,
        "bits_per_byte": None if loss is None else loss * 1.5,
        "accuracy": 0.4 if done else None,
        "unigram": UNIGRAM if done else None,
        "of_text": {"tokens": 4_000, "loss": loss + 0.1, "unigram": OF_TEXT} if loss is not None else None,
        "learned": None if loss is None else loss + 0.1 < 3.0,
        "training_seconds": 61.0 if done else None,
    } | more


def board(*given: dict[str, Any]) -> dict[str, Any]:
    """Of these cells; the others of the plan are not done."""
    known = {(one["architecture"], one["vocabulary"]): one for one in given}
    pairs = (("enc_dec", "span_corruption"), ("dec", "lm"))
    cells = [
        known.get((one, vocabulary)) or cell(one, objective, vocabulary, None)
        for vocabulary in ("bytes", "bpe")
        for one, objective in pairs
    ]
    return {
        "format": 1,
        "experiment": "a_matrix",
        "dataset": {"name": "text", "sha256": {"train": "a" * 64}},
        "architectures": [{"name": "enc_dec", "title": "encoder-decoder"}, {"name": "dec", "title": "decoder | only"}],
        "objectives": [{"name": "span_corruption", "title": "spans"}, {"name": "lm", "title": "LM"}],
        "vocabularies": [
            {"name": "bytes", "title": "bytes", "command": None, "ids": [384]},
            {"name": "bpe", "title": "BPE", "command": "make vocab DATASET=text SIZE=80 MODEL=bpe", "ids": [180, 185]},
        ],
        "left_out": [
            {"architecture": "enc_dec", "objective": "lm", "reason": "Nothing to encode."},
            {"architecture": "dec", "objective": "span_corruption", "reason": "No inputs."},
        ],
        "runs": len(cells),
        "runs_done": sum(one["done"] for one in cells),
        "learned": sum(bool(one["learned"]) for one in cells),
        "cells": cells,
        "sources": {"commit": ["0123456789ab"], "versions": [{"jax": "1.0"}], "cpu": ["A CPU"], "cores": [2]},
    }


FOUND = board(
    cell("enc_dec", "span_corruption", "bytes", 1.8),
    cell("dec", "lm", "bytes", 3.25),
    cell("enc_dec", "span_corruption", "bpe", None),
    cell("dec", "lm", "bpe", 2.5, packed=True),
)


def rows(text: str, begin: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| {begin}")]


def test_a_cell_is_a_number_beside_its_baseline() -> None:
    text = PAGE.block(FOUND)
    of_text, losses, bits = rows(text, "encoder-decoder | bytes")[:3]
    assert of_text == "| encoder-decoder | bytes | **1.900** / 3.000 | –<sup>1</sup> |"  # noqa: RUF001
    assert losses == "| encoder-decoder | bytes | **1.800** / 3.500 | –<sup>1</sup> |"  # noqa: RUF001
    assert bits == "| encoder-decoder | bytes | **2.700** / 5.250 | –<sup>1</sup> |"  # noqa: RUF001
    # lower of all targets, and not of the text: not bold anywhere, and counted
    not_learned = rows(text, "decoder &#124; only | bytes")
    assert [line.rpartition("</sup> ")[2] for line in not_learned[:2]] == ["| 3.350 / 3.000 |", "| 3.250 / 3.500 |"]
    assert "as in 2 of 3 of the cells" in text
    assert rows(text, "encoder-decoder | BPE")[0] == "| encoder-decoder | BPE | - | –<sup>1</sup> |"  # noqa: RUF001
    assert "3 of 4 cells are done" in text
    assert "<sup>1</sup> Nothing to encode.<br>\n<sup>2</sup> No inputs." in text


def test_what_bits_per_byte_compare_is_said() -> None:
    text = PAGE.block(FOUND)
    assert "bits per byte compare LM runs whatever their vocabularies" in text
    assert "(bytes 4,999, BPE 4,999 bytes;" in text
    assert "not across vocabularies or objectives" in text
    without = PAGE.block(board(cell("enc_dec", "span_corruption", "bytes", 1.8)))
    assert "whatever their vocabularies" not in without


def test_every_cell_has_its_steps_and_tokens() -> None:
    text = PAGE.block(FOUND)
    (found,) = rows(text, "encoder-decoder | spans | bytes")
    numbers = "1.800 | 3.500 | 1.900 | 3.000 | 2.700 | 5.250 | 0.400 | 0.100"
    assert f"| 1,234,567 | 16 x 256 | 300 | 76,800 | 5,000 | 4,000 | {numbers} | yes |" in found
    (found,) = rows(text, "decoder &#124; only | LM | BPE")
    assert "| 16 x 256 packed |" in found
    (found,) = rows(text, "decoder &#124; only | LM | bytes")
    assert found.endswith("| no |")
    assert "`make vocab DATASET=text SIZE=80 MODEL=bpe`" in text
    assert "commit 0123456789ab" in text


def test_a_cell_that_diverged_says_so() -> None:
    diverged = cell("enc_dec", "span_corruption", "bytes", None, done=True, diverged_at=7)
    text = PAGE.block(board(diverged, cell("dec", "lm", "bytes", 2.0)))
    assert "| not finite after step 7 |" in text
    assert line(diverged).endswith("not finite after step 7")
    assert line(FOUND["cells"][0]).endswith("1.900 nats a token of text, unigram 3.000: learned")
    assert line(FOUND["cells"][1]).endswith("has not learned")


def test_the_short_table_stands_between_markers_of_its_own() -> None:
    text = PAGE.short_block(FOUND, "experiments/a_matrix")
    assert text.startswith("<!-- a_matrix:begin -->")
    assert text.endswith("<!-- a_matrix:end -->")
    assert len(rows(text, "encoder-decoder | bytes")) == 1
    assert "(experiments/a_matrix/README.md)" in text
    assert "bytes 4.88, BPE 3.75." in text


@pytest.mark.parametrize("file", BOARDS, ids=lambda file: file.parent.name)
def test_published_pages_are_those_of_their_boards(file: Path, tmp_path: Path) -> None:
    assert kinds.page_differences(file.parent) == []
    write_results(tmp_path / file.name, read_json(file))
    assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_recipes_with_different_tasks_are_not_drawn() -> None:
    board = read_json(paths.EXPERIMENTS / "ul2_tiny" / SWEEP_PAGE.board_file)
    assert set(SWEEP_PAGE.pictures(board)) == {STEPS_FILE}
    task = board["final"][0]["validated_on"]
    assert f"validation loss on {task}, nats per target byte" in SWEEP_PAGE.pictures(board)[STEPS_FILE]
    other = copy.deepcopy(board)
    other["final"][0]["validated_on"] = "another"
    assert SWEEP_PAGE.pictures(other) == {}
    text = SWEEP_PAGE.block(other)
    assert "The recipes are validated on different tasks: these losses do not compare, and no curve is drawn." in text
    assert "| reference |" in SWEEP_PAGE.block(board)
    assert "| reference |" not in text


def test_a_page_of_nothing_yet_has_no_leaderboard() -> None:
    board = read_json(paths.EXPERIMENTS / "optimizers_tiny" / SWEEP_PAGE.board_file)
    for entry in (*board["final"], board["short"]):
        entry["mean_loss"] = None
    board["runs_done"] = len(board["search"])
    assert SWEEP_PAGE.pictures(board) == {}
    text = SWEEP_PAGE.block(board)
    assert f"{board['runs_done']} of {board['runs']} runs are done; what is missing is left out." in text
    assert "What was tried, once each:" in text
    assert "loss after" not in text


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.0, 2.0, None], ["**1.000**", "2.000", "-"]),
        ([1.0, 1.0], ["1.000", "1.000"]),
        ([1.0], ["1.000"]),
    ],
)
def test_only_what_is_lower_is_bold(values: list[float | None], shown: list[str]) -> None:
    assert lowest_bold(values) == shown
