"""Runs with adapters or a teacher as their users type them: trained, continued, asked, exported; what is refused."""

import json
import re
import shutil
from pathlib import Path

import pytest

from t5xpg.experiment import config
from tests.refusals import refused
from tests.workplace import FINE_TUNING, Workplace, assert_same_run, checkpoint_arrays


@pytest.mark.process
@pytest.mark.parametrize(("adapter", "trained"), [("lora", "lora_[ab]"), ("prompt_tuning", "'prompt'")])
def test_only_the_adapter_is_kept_and_goes_on_exactly(
    workplace: Workplace, pretrained: Path, monkeypatch: pytest.MonkeyPatch, adapter: str, trained: str
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
    again = (str(gin), "--gin.TRAIN_STEPS=8", f"--run={parts}")
    shutil.copytree(runs / whole, runs / parts, ignore=shutil.ignore_patterns("6", "8"))  # checkpoints
    assert "continues after step 4" in workplace.run("train", *again)
    assert_same_run(runs / parts, runs / whole, 8)
    arrays = checkpoint_arrays(runs / parts / "checkpoints", 8)
    assert all(re.search(trained, name) for name in arrays if name.startswith("params"))
    # asked and exported with what it was trained beside, and with nothing else
    assert "after step 8" in workplace.run("infer", *again, "--prompt=the dog <extra_id_0> the river")
    if adapter == "lora":
        monkeypatch.setenv("T5XPG_TORCH_PYTHON", "0")
        for options in ((), ("--format=peft",)):
            workplace.run("export", *again, *options)
    else:
        workplace.refused("export", *again, words=["prompt_tokens"])
    other = "--gin.INITIAL_CHECKPOINT=pretrained/checkpoints/8"
    workplace.refused("infer", *again, other, "--prompt=a <extra_id_0>", words=["SHA-256"])


@pytest.mark.process
def test_a_run_with_a_teacher_goes_on_exactly(workplace: Workplace, pretrained: Path) -> None:
    gin = workplace.folder / "student.gin"
    started = FINE_TUNING.replace("'small'\n", "'pretrained/checkpoints/4'\n", 1)
    gin.write_text(started + "include 'gin/runs/distillation.gin'\nTEACHER_CHECKPOINT = 'pretrained'\n")
    runs = workplace.folder / "runs"
    printed = workplace.run("train", str(gin), "--gin.TRAIN_STEPS=8", "--run=taught_whole")
    assert "start: small after step 4, pretrained/checkpoints/4\nteacher: small after step 12, pretrained\n" in printed
    again = (str(gin), "--gin.TRAIN_STEPS=8", "--run=taught_parts")
    shutil.copytree(runs / "taught_whole", runs / "taught_parts", ignore=shutil.ignore_patterns("6", "8"))
    assert "continues after step 4" in workplace.run("train", *again)
    assert_same_run(runs / "taught_parts", runs / "taught_whole", 8)
    taught, plain = (checkpoint_arrays(run / "checkpoints", 8) for run in (runs / "taught_parts", pretrained))
    assert taught.keys() == plain.keys()
    lines = [json.loads(line) for line in (runs / "taught_whole" / "metrics.jsonl").read_text().splitlines()]
    divergences = [line["teacher_divergence"] for line in lines if line["split"] == "train"]
    assert all(0 < each < 1 for each in divergences), "both are nearly untrained"
    assert "after step 8" in workplace.run("infer", *again, "--prompt=the dog <extra_id_0> the river")


def test_settings_that_contradict_each_other(tmp_path: Path) -> None:
    gin = tmp_path / "tuned.gin"
    gin.write_text(FINE_TUNING)
    for adapter, override, *named in (
        ("lora", "experiment.Experiment.initial=None", "Lora", "checkpoint"),
        ("lora", "RESET_OPTIMIZER=False", "Lora", "optimiser"),
        ("lora", "ADAPT_DECODER=True", "ADAPT_DECODER"),
        ("prompt_tuning", "PACK=True", "PACK=True"),
    ):
        with refused(*named):
            config.load(str(gin), [override], [f"gin/adapters/{adapter}.gin"])
