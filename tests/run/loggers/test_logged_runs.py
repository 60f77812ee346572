"""Loggers of a real run: that of the page, Weights & Biases offline, and one that fails."""

import os
import re
from pathlib import Path

import pytest

from t5xpg.run.loggers.weights_and_biases import last_offline_step
from t5xpg.run.records import read_jsonl, records_of_split
from tests.workplace import REPOSITORY, Workplace, run_python

pytestmark = pytest.mark.process

PAGE = (REPOSITORY / "docs" / "logging.md").read_text(encoding="utf-8")
FAILING = """
from t5xpg.run.loggers import Logger


class Failing(Logger):
    def record(self, step, values):
        raise ConnectionError("nobody answers")
"""
FIRST_HALF = """
import sys
from pathlib import Path
from t5xpg.experiment import config
from t5xpg.train.train import train
train(config.load(sys.argv[1], *config.logger_overrides("wandb")), Path(sys.argv[2]), until=6)
"""
ALL_OF_THEM = """
include 'gin/loggers/wandb.gin'
LOGGERS = (%WANDB, @my_logger.ValidationTable(), @failing_logger.Failing())
"""


@pytest.fixture(scope="module")
def variables(workplace: Workplace) -> dict[str, str]:
    """The modules and the gin file of the page, where a run finds them, and W&B without a network."""
    folder = workplace.folder / "loggers"
    folder.mkdir()
    module, gin = (
        re.search(rf"^```(?:python)?\n(# {name}\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
        for name in ("my_logger.py", "my_logger.gin")
    )
    assert module
    assert gin
    (folder / "my_logger.py").write_text(module[1])
    (folder / "failing_logger.py").write_text(FAILING)
    imports = "import my_logger\nimport failing_logger"
    (folder / "all.gin").write_text(gin[1].replace("import my_logger", imports) + ALL_OF_THEM)
    path = os.pathsep.join([str(folder), workplace.environment["PYTHONPATH"]])
    return {"PYTHONPATH": path, "WANDB_MODE": "offline", "HOME": str(folder)}


def test_a_run_that_goes_on_is_told_whole_and_is_the_unbroken_one(
    workplace: Workplace, pretrained: Path, variables: dict[str, str]
) -> None:
    """Its first half with one logger, its second with two more: one that has to be told what was before, and one that
    fails."""
    experiment, run = str(workplace.experiment), pretrained.with_name("logged")
    run_python(FIRST_HALF, experiment, str(run), env={**workplace.environment, **variables})
    options = ["--run=logged", f"--gin_file={workplace.folder / 'loggers' / 'all.gin'}"]
    printed = workplace.run("train", experiment, *options, **variables)
    assert printed.count("warning: the logger Failing ended before the first record") == 1
    assert "ConnectionError: nobody answers" in printed
    for record in ("metrics.jsonl", "batches.sha256"):
        assert (run / record).read_bytes() == (pretrained / record).read_bytes()
    folder = run / "loggers"
    assert len(list(folder.glob("wandb/offline-run-*"))) == 2, "one for each process"
    assert last_offline_step(folder, "*") == 12
    validation = records_of_split(read_jsonl(run / "metrics.jsonl"), "validation")
    table = (folder / "losses.tsv").read_text().splitlines()
    assert table == [f"{one['step']}\t{one['loss']:.4f}" for one in validation]
    assert [one["step"] for one in validation] == [0, 6, 12]


def test_check_asks_loggers(workplace: Workplace) -> None:
    options = ("--logger=wandb", "--gin.WANDB_MODE=off")
    workplace.refused("check", str(workplace.experiment), *options, words=["WANDB_MODE is 'off'"])
