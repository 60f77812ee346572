"""Reading sweep.toml: what it trains, and every mistake in it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from t5xpg.base.errors import UserError
from t5xpg.study import plan
from tests.workplace import REPOSITORY

PLAN = """
[search]
steps = 500
seed = 3

[final]
steps = 2000
seeds = [0, 1]
reference = "stock"

[short]
recipe = "fast"
steps = 800
seeds = [0, 1]

[recipes.stock]
title = "Stock"
gin_file = "gin/optimizers/adafactor.gin"
candidates = ["LEARNING_RATE=1.0"]

[recipes.fast]
title = "Fast"
gin_file = "gin/optimizers/muon.gin"
candidates = ["LEARNING_RATE=0.01", "LEARNING_RATE=0.02   WARMUP_STEPS=10"]
"""


def read(folder: Path, text: str) -> plan.Plan:
    (folder / plan.FILE_NAME).write_text(text, encoding="utf-8")
    return plan.read(folder / plan.FILE_NAME)


def test_a_plan_is_its_runs(tmp_path: Path) -> None:
    found = read(tmp_path, PLAN)
    search = found.search()
    assert [(run.recipe.name, run.candidate, run.steps, run.seed) for run in search] == [
        ("fast", "LEARNING_RATE=0.01", 500, 3),
        ("fast", "LEARNING_RATE=0.02 WARMUP_STEPS=10", 500, 3),
    ]
    assert search[1].overrides == [
        "--gin_file=gin/optimizers/muon.gin",
        "--gin.LEARNING_RATE=0.02",
        "--gin.WARMUP_STEPS=10",
        "--gin.TRAIN_STEPS=500",
        "--gin.RANDOM_SEED=3",
    ]
    later = found.final({"stock": "LEARNING_RATE=1.0", "fast": "LEARNING_RATE=0.01"})
    assert [(run.stage, run.recipe.name, run.steps, run.seed) for run in later] == [
        ("final", "stock", 2000, 0),
        ("final", "fast", 2000, 0),
        ("short", "fast", 800, 0),
        ("final", "stock", 2000, 1),
        ("final", "fast", 2000, 1),
        ("short", "fast", 800, 1),
    ]
    assert all(run.candidate == "LEARNING_RATE=0.01" for run in later if run.recipe.name == "fast")


def test_every_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    found = read(tmp_path, PLAN)
    best = {"stock": "LEARNING_RATE=1.0", "fast": "LEARNING_RATE=0.01"}
    folders = [run.folder for run in [*found.search(), *found.final(best)]]
    assert len(set(folders)) == len(folders)
    assert not any(character in folder for folder in folders for character in "/ @")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("steps = 500", 'steps = "many"', "[search] steps: a whole number is needed, and it is 'many'."),
        ("steps = 500", "steps = 0", "[search] steps = 0 is too small."),
        ("seed = 3", "sead = 3", "[search] sead is not known. Did you mean seed?"),
        ("seeds = [0, 1]", "seeds = [0.5]", "[final] seeds: a list of whole numbers is needed"),
        ('reference = "stock"', 'reference = "stok"', "[final] reference = 'stok' is no recipe. Did you mean stock?"),
        ("[recipes.fast]", "[recipes.'Fast one']", "a name of small letters, digits and _ is needed."),
        ('candidates = ["LEARNING_RATE=1.0"]', "candidates = []", 'a list of texts such as "LEARNING_RATE=0.02"'),
        ("[search]", "[serch]", "[serch] is not known. Did you mean search?"),
        ("[search]", "[search", "Expected ']'"),
    ],
)
def test_mistakes_are_said(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path, PLAN.replace(old, new, 1))
    assert said in str(error.value)
    assert str(tmp_path / plan.FILE_NAME) in str(error.value)


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path, PLAN.replace("seed = 3", "").replace('title = "Fast"', ""))
    assert "[search] seed:" in str(error.value)
    assert "[recipes.fast] title:" in str(error.value)


def test_an_experiment_without_a_plan_is_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no sweep"):
        plan.read(tmp_path / plan.FILE_NAME)


def test_the_plans_of_this_repository_can_be_read() -> None:
    files = sorted(REPOSITORY.glob(f"experiments/*/{plan.FILE_NAME}"))
    assert files
    for file in files:
        assert plan.read(file).recipes
