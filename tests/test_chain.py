"""The program as its users type it: data, cache, train, stop, go on, evaluate."""

import dataclasses
import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.refusals import assert_named
from tests.workplace import Workplace, assert_same_run, wait_until
from tests.written_evaluations import newest

# The one chain of programs among the unit tests; what more they do is tested with the processes.
unit = pytest.mark.process(tier="units")


@pytest.fixture(scope="module")
def workplace(workplace: Workplace) -> Workplace:
    """The common one, its programs compiled as the user's are."""
    return dataclasses.replace(workplace, fast_compilation=False)


@pytest.fixture(scope="module")
def unbroken(workplace: Workplace) -> tuple[Path, str]:
    """A run that nothing interrupted, traced as the others are not, and what it printed."""
    folder = workplace.folder / "runs" / "unbroken"
    return folder, workplace.run("train", str(workplace.experiment), "--run=unbroken", "--profile")


@unit
def test_training_says_what_it_does(unbroken: tuple[Path, str]) -> None:
    folder, printed = unbroken
    assert_named(printed, ["49,504 parameters", "AdamW", "batch 4 x 64/32 tokens", "seed 7", "profile of 7"])
    (last,) = re.findall(r"^step 12: validation loss (\S+)", printed, re.M)
    assert re.search(rf"^train  12 steps .* validation {last}$", printed, re.M)
    assert "warning" not in printed.lower()
    assert {path.name for path in folder.iterdir()} >= {
        "config.gin", "operative.gin", "run.json", "metrics.jsonl", "timing.jsonl", "checkpoints", "tensorboard",
    }  # fmt: skip
    assert list(folder.glob("profile/plugins/profile/*/perfetto_trace.json.gz"))
    assert_named(printed.splitlines()[-1], ["make eval EXP=", "RUN=unbroken"])


@unit
def test_records_hold_what_the_run_determines(unbroken: tuple[Path, str]) -> None:
    folder, _ = unbroken
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["split"]) for line in metrics] == [
        (0, "validation"), (5, "train"), (6, "validation"), (10, "train"), (12, "train"), (12, "validation"),
    ]  # fmt: skip
    assert metrics[0]["loss"] > metrics[-1]["loss"]
    assert metrics[0]["loss"] == pytest.approx(np.log(384), rel=0.2)
    assert not {"time", "seconds_per_step"} & {name for line in metrics for name in line}
    run = json.loads((folder / "run.json").read_text())
    assert run["identity"]["vocabulary"]["sentinels"] == "seqio"
    assert run["identity"]["data"]["dataset"] == "small"
    assert set(run["identity"]["data"]["sha256"]) == {"train", "validation"}
    assert run["identity"]["cache"]
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))


@unit
def test_a_killed_run_goes_on_to_the_same_numbers(workplace: Workplace, unbroken: tuple[Path, str]) -> None:
    folder = workplace.folder / "runs" / "killed"
    with workplace.start("train", str(workplace.experiment), "--run=killed", held_at=4) as process:
        wait_until(process, (folder / "checkpoints" / "4").is_dir)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    printed = workplace.run("train", str(workplace.experiment), "--run=killed")
    assert "continues after step 4\n" in printed
    assert_same_run(folder, unbroken[0], 12)


@unit
def test_evaluation(workplace: Workplace, unbroken: tuple[Path, str]) -> None:
    folder, _ = unbroken
    workplace.run("eval", str(workplace.experiment), "--run=unbroken")
    measured = newest(folder)
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert measured.record["target_tokens"] > last["target_tokens"]  # the whole split, not EVAL_STEPS batches
    samples = json.loads(measured.samples_json.read_text())
    assert len(samples) == 8
    assert all("<extra_id_0>" in sample["target"] for sample in samples)
