"""The example of docs/finetuning.md, file by file and command by command as they stand there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from t5xpg.experiment import config
from t5xpg.run.records import read_jsonl
from tests.workplace import REPOSITORY, Workplace

PAGE = (REPOSITORY / "docs" / "finetuning.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w*\n# (\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = re.findall(r"^PYTHONPATH=\. make (\w+ EXP=answers.*)$", PAGE, re.MULTILINE)
SMALL = {
    "TRAIN_STEPS": 4, "BATCH_SIZE": 4, "EVAL_PERIOD": 2, "INFER_EVAL_PERIOD": 2, "INFER_EVAL_STEPS": 1,
    "CHECKPOINT_PERIOD": 4, "TASK_FEATURE_LENGTHS": {"inputs": 64, "targets": 32},
    "encoder_decoder.T5Config.emb_dim": 32, "encoder_decoder.T5Config.num_heads": 2,
    "encoder_decoder.T5Config.head_dim": 16, "encoder_decoder.T5Config.mlp_dim": 64,
    "encoder_decoder.T5Config.num_encoder_layers": 1, "encoder_decoder.T5Config.num_decoder_layers": 1,
}  # fmt: skip
OVERRIDES = [f"--gin.{name}={value}" for name, value in SMALL.items()]


@pytest.fixture(scope="module")
def place(workplace: Workplace) -> Workplace:
    """With the run that the page starts from, its files, and questions with their answers."""
    assert set(FILES) == {"my_answers.py", "answers.gin", "prefix_lm.gin"}
    for split, count in (("train", 40), ("validation", 6)):
        lines = (f"what is {n} of {split}?\t{n}\n" for n in range(count))
        (workplace.folder / f"{split}.tsv").write_text("".join(lines))
    for name, text in FILES.items():
        (workplace.folder / name).write_text(text.replace("/path/", f"{workplace.folder}/"))
    workplace.run("train", str(workplace.experiment), "--run=byt5_tiny_demo", "--gin.TRAIN_STEPS=5")
    return workplace


def typed(place: Workplace, command: str, *more: str, code: int = 0) -> str:
    """Run what a line of the page is in the program's own words, at a small size."""
    target, *values = shlex.split(command)
    options = dict(value.split("=", 1) for value in values)
    gin = place.folder / f"{options.pop('EXP')}.gin"
    if "OUTPUT" in options:
        options["OUTPUT"] = str(place.folder / options["OUTPUT"])
    given = [f"--{name.lower()}={value}" for name, value in options.items()]
    return place.run(target, str(gin), *given, *OVERRIDES, *more, code=code)


@pytest.mark.process
def test_the_page_in_its_order(place: Workplace) -> None:
    assert [command.split()[0] for command in COMMANDS] == ["check", "train", "eval", "infer"]
    check, train, evaluate, infer = COMMANDS
    printed = typed(place, check)
    assert re.search(r"^start    ok  parameters of small after step 5, in ", printed, re.MULTILINE)
    assert re.search(r"^best     ok  my_answers/exact_match, max, kept; ends after 5 in a row", printed, re.M), printed
    for command in (check, train):
        printed = typed(place, command, "--gin.BEST_METRIC=my_answers/exact_mach", code=1)
        assert "'my_answers/exact_mach', which is not measured. Did you mean my_answers/exact_match?" in printed
    assert not list((place.folder / "runs").glob("answers/checkpoints/*"))
    printed = typed(place, train)
    assert re.search(r"^the best my_answers/exact_match is 0, at step 2$", printed, re.MULTILINE), printed
    run = place.folder / "runs" / "answers"
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["2", "4"]
    measured = [one for one in read_jsonl(run / "metrics.jsonl") if one["split"] == "infer_eval"]
    assert [one["step"] for one in measured] == [2, 4]
    assert "answers after step 2 on validation" in typed(place, evaluate)
    typed(place, infer)
    answers = [json.loads(line) for line in (place.folder / "answers.jsonl").read_text().splitlines()]
    # in the order of the cache
    assert sorted(answer["targets"] for answer in answers) == [str(n) for n in range(6)]


@pytest.mark.process
def test_no_better_answer_ends_the_run(place: Workplace) -> None:
    """By the metric of a task: no answer is ever right, so that the second evaluation is no better than the first."""
    more = ("--gin.EARLY_STOP_PATIENCE=1", "--gin.TRAIN_STEPS=50", "--gin.EVAL_PERIOD=50", "--run=impatient")
    printed = typed(place, COMMANDS[1], *more)
    assert "ended after step 4: my_answers/exact_match has not been better for 1 evaluation" in printed
    records = read_jsonl(place.folder / "runs" / "impatient" / "metrics.jsonl")
    of_the_end = [one["split"] for one in records if one["step"] == 4]
    assert of_the_end == ["infer_eval", "validation", "train"], "it is measured as a last step is"
    # a copy that lost its last checkpoint goes on, and ends where it ended
    again = place.folder / "runs" / "impatient_again"
    shutil.copytree(again.with_name("impatient"), again)
    shutil.rmtree(again / "checkpoints" / "4")
    assert "continues after step 2" in typed(place, COMMANDS[1], *more[:-1], f"--run={again.name}")
    assert read_jsonl(again / "metrics.jsonl") == records


def test_the_prefix_lm_of_the_page_builds(tmp_path: Path) -> None:
    (tmp_path / "prefix_lm.gin").write_text(FILES["prefix_lm.gin"])
    experiment = config.load(str(tmp_path / "prefix_lm.gin")).experiment
    assert experiment.train_dataset.converter == "PrefixLMFeatureConverter"
