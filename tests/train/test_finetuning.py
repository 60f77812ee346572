"""Fine-tuning as its users type it: from a checkpoint, ended early, measured at its best, published."""

import json
import re
import shutil
from pathlib import Path

import pytest

from t5xpg.run.checkpoint.folders import saved_steps
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import read_jsonl
from tests.refusals import assert_named
from tests.workplace import FINE_TUNING, Workplace
from tests.written_evaluations import newest

pytestmark = pytest.mark.process

# The rate grows by 1 with each update, so that the first evaluation is the best whatever the last bits: with ten seeds
# all later ones were more than twice as bad. A constant rate leaves it to chance.
OPTIONS = (
    "--gin.LEARNING_RATE=1000", "--gin.WARMUP_STEPS=1000", "--gin.TRAIN_STEPS=60", "--gin.EVAL_PERIOD=3",
    "--gin.CHECKPOINT_PERIOD=4", "--gin.KEEP_CHECKPOINTS=1", "--gin.EARLY_STOP_PATIENCE=3",
)  # fmt: skip


@pytest.fixture(scope="module")
def tuned_gin(workplace: Workplace, pretrained: Path) -> str:
    """Fine-tuning of that on the same text, in a folder that can be published into."""
    folder = workplace.folder / "tuned"
    folder.mkdir()
    gin = folder / "tuned.gin"
    gin.write_text(FINE_TUNING.replace("'small'", "'pretrained'"))
    return str(gin)


@pytest.fixture(scope="module")
def unbroken(workplace: Workplace, tuned_gin: str) -> tuple[Path, str]:
    return workplace.folder / "runs" / "tuned", workplace.run("train", tuned_gin, *OPTIONS)


def validation_losses(run: Path) -> dict[int, float]:
    """Of each evaluation but the one before the first update."""
    records = read_jsonl(run / "metrics.jsonl")
    return {one["step"]: one["loss"] for one in records if one["split"] == "validation" and one["step"]}


def test_it_begins_where_the_pretraining_ended(pretrained: Path, unbroken: tuple[Path, str]) -> None:
    run, printed = unbroken
    assert "start: small after step 12, pretrained" in printed
    last, first = read_jsonl(pretrained / "metrics.jsonl")[-1], read_jsonl(run / "metrics.jsonl")[0]
    assert {**last, "step": 0} == first, "the same loss of the same text"
    initial = RunDirectory(run).read()["identity"]["initial"]
    assert (initial["experiment"], initial["step"]) == ("small", 12)
    checkpoints = run / "checkpoints"
    meta = json.loads((checkpoints / str(saved_steps(checkpoints)[-1]) / "meta" / "metadata").read_text())
    assert meta["initial"] == {"named": "pretrained", **initial}


def test_it_ends_early_as_a_whole_run(workplace: Workplace, tuned_gin: str, unbroken: tuple[Path, str]) -> None:
    run, printed = unbroken
    records = read_jsonl(run / "metrics.jsonl")
    losses = validation_losses(run)
    best = min(losses, key=lambda step: losses[step])
    end = best + 3 * 3
    assert (best, max(losses)) == (3, end), losses
    assert_named(printed, [f"ended after step {end}", f"{losses[best]:.4g}, at step {best}"])
    assert [path.name for path in (run / "checkpoints").iterdir() if not path.name.isdecimal()] == []
    assert saved_steps(run / "checkpoints") == [best, end]
    assert [one["step"] for one in records if one["split"] == "train"][-1] == end, "the window that was not full"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert f"already trained for {end} steps" in workplace.run("train", tuned_gin, *OPTIONS)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_more_patience_goes_on(workplace: Workplace, tuned_gin: str, unbroken: tuple[Path, str]) -> None:
    """And from another checkpoint it would be another run."""
    copy = workplace.folder / "runs" / "patient"
    shutil.copytree(unbroken[0], copy)
    end = saved_steps(copy / "checkpoints")[-1]
    more = (*OPTIONS[:-1], "--gin.EARLY_STOP_PATIENCE=4", f"--gin.TRAIN_STEPS={end + 3}", "--run=patient")
    other = "--gin.INITIAL_CHECKPOINT=pretrained/checkpoints/8"
    workplace.refused("train", tuned_gin, *more, other, words=["INITIAL_CHECKPOINT", "'pretrained'"])
    printed = workplace.run("train", tuned_gin, *more)
    assert f"continues after step {end}" in printed
    assert saved_steps(copy / "checkpoints") == [saved_steps(unbroken[0] / "checkpoints")[0], end + 3]


def test_the_best_is_measured_and_published(workplace: Workplace, tuned_gin: str, unbroken: tuple[Path, str]) -> None:
    run, _ = unbroken
    best, end = saved_steps(run / "checkpoints")
    printed = workplace.run("eval", tuned_gin, *OPTIONS, "--step=best")
    assert f"tuned, step {best}, validation" in printed
    assert newest(run).record["step"] == best
    prompt = "--prompt=the dog <extra_id_0> the river"
    assert f"tuned after step {best}\n" in workplace.run("infer", tuned_gin, *OPTIONS, prompt, "--step=best")
    keeping_none = ("--gin.KEEP_BEST=False", "--step=best")
    workplace.refused("eval", tuned_gin, *OPTIONS, *keeping_none, words=["STEP=best", "KEEP_BEST", f"[{best}, {end}]"])
    workplace.run("report", tuned_gin)
    readme = (Path(tuned_gin).parent / "README.md").read_text()
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.*) \|$", readme, re.M))
    assert "small after step 12" in rows["started from"]
    assert f"{validation_losses(run)[best]:.4g} at step {best}" in rows["best"]
    assert "3 evaluations" in rows["ended early"]
