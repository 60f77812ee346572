"""Options of training together: they learn, and a run that is continued is the unbroken one."""

import json

import pytest

from tests.conftest import Workplace

pytestmark = pytest.mark.process

# Everything that changes how a step or a batch is made, at once.
OPTIONS = [
    "--gin.DTYPE=bfloat16", "--gin.PACK=True", "--gin.NUM_MICROBATCHES=2", "--gin.NUM_VIRTUAL_SHARDS=2",
    "--gin.LABEL_SMOOTHING=0.1", "--gin_file=gin/optimizers/adafactor.gin", "--gin.STATS_PERIOD=3",
    "--gin.CHECKPOINT_PERIOD=3", "--gin.EMA_DECAY=0.9",
]  # fmt: skip


def lines(workplace: Workplace, name: str) -> bytes:
    return (workplace.folder / "runs" / name / "metrics.jsonl").read_bytes()


def test_packed_microbatched_bfloat16_runs_learn_and_continue(workplace: Workplace) -> None:
    experiment = str(workplace.experiment)
    workplace.run("train", experiment, *OPTIONS, "--gin.TRAIN_STEPS=12", "--run=options")
    workplace.run("train", experiment, *OPTIONS, "--gin.TRAIN_STEPS=6", "--run=parts")
    printed = workplace.run("train", experiment, *OPTIONS, "--gin.TRAIN_STEPS=12", "--run=parts")
    assert "continues after step 6" in printed
    assert lines(workplace, "parts") == lines(workplace, "options")
    printed = workplace.run("eval", experiment, *OPTIONS, "--gin.TRAIN_STEPS=12", "--run=parts", "--step=mean:2")
    evaluation = json.loads((workplace.folder / "runs" / "parts" / "evaluation.json").read_text())
    assert (evaluation["step"], evaluation["mean_of_checkpoints"]) == (12, 2)
    refused = workplace.run(
        "eval", experiment, *OPTIONS, "--gin.TRAIN_STEPS=12", "--run=parts", "--step=mean:9", code=1
    )
    assert "STEP=mean:9" in refused
    assert "of the steps [6, 9, 12]" in refused
    records = [json.loads(line) for line in lines(workplace, "options").splitlines()]
    validation = [record["loss"] for record in records if record["split"] == "validation"]
    assert validation[-1] < validation[0] - 0.1
