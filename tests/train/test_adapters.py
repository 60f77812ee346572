"""Runs with adapters or a teacher as their users type them: trained, continued, asked, exported; what is refused."""

import json
import re
from pathlib import Path

import pytest

from t5xpg.base.errors import UserError
from t5xpg.experiment import config
from tests.workplace import FINE_TUNING, Workplace, checkpoint_arrays


@pytest.mark.process
@pytest.mark.parametrize(("adapter", "trained"), [("lora", "lora_[ab]"), ("prompt_tuning", "'prompt'")])
def test_only_the_adapter_is_kept_and_goes_on_exactly(
    workplace: Workplace, pretrained: Path, adapter: str, trained: str
) -> None:
    gin = workplace.folder / f"{adapter}.gin"
    gin.write_text(FINE_TUNING.replace("'small'\n", "'pretrained'\n", 1) + f"\ninclude 'gin/adapters/{adapter}.gin'\n")
    runs = workplace.folder / "runs"
    whole, parts = f"{adapter}_whole", f"{adapter}_parts"
    printed = workplace.run("train", str(gin), "--gin.TRAIN_STEPS=8", f"--run={whole}")
    assert "start: small after step 12, pretrained" in printed
    if adapter == "lora":  # it begins as what it starts from
        first, last = (
            (runs / name / "metrics.jsonl").read_text().splitlines()[at]
            for name, at in ((whole, 0), ("pretrained", -1))
        )
        assert json.loads(first) == {**json.loads(last), "step": 0}
    for steps in (4, 8):
        workplace.run("train", str(gin), f"--gin.TRAIN_STEPS={steps}", f"--run={parts}")
    expected, found = (checkpoint_arrays(runs / name / "checkpoints", 8) for name in (whole, parts))
    assert expected.keys() == found.keys()
    assert all(expected[name].tobytes() == found[name].tobytes() for name in expected)
    assert all(re.search(trained, name) for name in expected if name.startswith("params"))
    # asked and exported with what it was trained beside, and with nothing else
    again = (str(gin), "--gin.TRAIN_STEPS=8", f"--run={parts}")
    assert "after step 8" in workplace.run("infer", *again, "--prompt=the dog <extra_id_0> the river")
    if adapter == "lora":
        workplace.run("export", *again, T5XPG_TORCH_PYTHON="0")
    else:
        assert "transformers' T5 has no prompt_tokens" in workplace.refused("export", *again)
    other = "--gin.INITIAL_CHECKPOINT=pretrained/checkpoints/8"
    assert "(SHA-256 " in workplace.refused("infer", *again, other, "--prompt=a <extra_id_0>")
    said = workplace.refused("train", str(gin), "--gin.TRAIN_STEPS=9", f"--run={parts}", other)
    assert re.search(r"initial\.step +12 in the run, 8 now", said), said


@pytest.mark.process
def test_a_run_with_a_teacher_goes_on_exactly(workplace: Workplace, pretrained: Path) -> None:
    gin = workplace.folder / "student.gin"
    started = FINE_TUNING.replace("'small'\n", "'pretrained/checkpoints/4'\n", 1)
    gin.write_text(started + "include 'gin/runs/distillation.gin'\nTEACHER_CHECKPOINT = 'pretrained'\n")
    runs = workplace.folder / "runs"
    printed = workplace.run("train", str(gin), "--gin.TRAIN_STEPS=8", "--run=taught_whole")
    assert "start: small after step 4, pretrained/checkpoints/4\nteacher: small after step 12, pretrained\n" in printed
    for steps in (4, 8):
        workplace.run("train", str(gin), f"--gin.TRAIN_STEPS={steps}", "--run=taught_parts")
    expected, found = (checkpoint_arrays(runs / name / "checkpoints", 8) for name in ("taught_whole", "taught_parts"))
    assert expected.keys() == found.keys() == checkpoint_arrays(pretrained / "checkpoints", 8).keys()
    assert all(expected[name].tobytes() == found[name].tobytes() for name in expected)
    lines = [json.loads(line) for line in (runs / "taught_whole" / "metrics.jsonl").read_text().splitlines()]
    divergences = [line["teacher_divergence"] for line in lines if line["split"] == "train"]
    assert all(0 < each < 1 for each in divergences), "both are nearly untrained"
    again = (str(gin), "--gin.TRAIN_STEPS=9", "--run=taught_parts")
    said = workplace.refused("train", *again, "--gin.TEACHER_CHECKPOINT=pretrained/checkpoints/8")
    assert "and those of TEACHER_CHECKPOINT=pretrained/checkpoints/8 are others" in said
    assert "after step 8" in workplace.run("infer", *again, "--prompt=the dog <extra_id_0> the river")


@pytest.mark.parametrize(
    ("adapter", "overrides", "message"),
    [
        ("lora", ("experiment.Experiment.initial=None",), "Lora trains a few parameters beside those of a checkpoint"),
        ("lora", ("RESET_OPTIMIZER=False",), "the optimiser of the checkpoint has nothing of Lora's"),
        ("lora", ("ADAPT_DECODER=True",), "ADAPT_DECODER makes parameters of a checkpoint's"),
        ("prompt_tuning", ("PACK=True",), "PACK=True puts several texts into a row, and a prompt stands before one"),
    ],
)
def test_settings_that_contradict_each_other(
    tmp_path: Path, adapter: str, overrides: tuple[str, ...], message: str
) -> None:
    gin = tmp_path / "tuned.gin"
    gin.write_text(FINE_TUNING)
    with pytest.raises(UserError, match=re.escape(message)):
        config.load(str(gin), overrides, [f"gin/adapters/{adapter}.gin"])
