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
from t5xpg.train import training
training.train(config.load(sys.argv[1], *config.logger_overrides("wandb")), Path(sys.argv[2]), until=6)
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
    (folder / "failing_logger.py").write_text(FAILING)
    (module,) = re.findall(r"^```python\n(# my_logger.py\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (folder / "my_logger.py").write_text(module)
    (gin,) = re.findall(r"^```\n(# my_logger.gin\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (folder / "my_logger.gin").write_text(gin)
    (folder / "all.gin").write_text(
        gin.replace("import my_logger", "import my_logger\nimport failing_logger") + ALL_OF_THEM
    )
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
    experiment = str(workplace.experiment)
    printed = workplace.refused("check", experiment, "--logger=wandb", "--gin.WANDB_MODE=off")
    assert "WANDB_MODE is 'off': it must be online, offline, disabled or None." in printed
