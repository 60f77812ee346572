"""`make infer` killed and started again: the file has the bytes of one that was never interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workplace import REPOSITORY, Workplace

pytestmark = pytest.mark.process

SAMPLES = [f"--gin.decoding.DecodingConfig.{option}" for option in ("method=sample", "num_decodes=2", "topp=0.9")]
BEAMS = ["--gin_file=gin/decoding/beam.gin", "--gin.decoding.DecodingConfig.return_all_decodes=False"]


@pytest.fixture(scope="module")
def experiment(workplace: Workplace) -> str:
    """With a run `asked` of two updates."""
    workplace.run("train", str(workplace.experiment), "--gin.TRAIN_STEPS=2", "--gin.WARMUP_STEPS=1", "--run=asked")
    return str(workplace.experiment)


def killed(workplace: Workplace, row: int, *arguments: str) -> None:
    script = Path(__file__).parent / "killed_inference.py"
    done = subprocess.run(
        [sys.executable, str(script), str(row), *arguments], cwd=REPOSITORY, text=True, timeout=600,
        env={**workplace.environment, "PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stdout


def test_a_file(workplace: Workplace, experiment: str) -> None:
    source, target, unbroken = (workplace.folder / name for name in ("asked.jsonl", "killed.jsonl", "unbroken.jsonl"))
    lines = [{"id": n, "inputs": f"the {'very ' * (n % 5)}old <extra_id_0> sees it"} for n in range(11)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["infer", experiment, "--run=asked", f"--input={source}", *SAMPLES]
    workplace.run(*command, f"--output={unbroken}")
    killed(workplace, 8, *command, f"--output={target}")
    assert not target.exists()
    assert len(target.with_name("killed.jsonl.partial").read_bytes().splitlines()) == 1 + 8
    printed = workplace.run(*command[:-1], f"--output={target}", code=1)
    assert "decoding.topp: 0.9 there, 1.0 now" in printed
    assert "8 records are done, going on behind them" in workplace.run(*command, f"--output={target}")
    assert target.read_bytes() == unbroken.read_bytes()
    assert not target.with_name("killed.jsonl.partial").exists()
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert [record["id"] for record in records] == list(range(11))
    assert all(len(record["predictions"]) == len(record["scores"]) == 2 for record in records)
    assert all(record["scores"] == sorted(record["scores"], reverse=True) for record in records)
    assert len({record["prediction"] for record in records}) > 8  # rows are numbered on, batch after batch


def test_a_split(workplace: Workplace, experiment: str) -> None:
    target, unbroken = (workplace.folder / name for name in ("split_killed.jsonl", "split_unbroken.jsonl"))
    command = ["infer", experiment, "--run=asked", "--split=validation", *BEAMS]
    workplace.run(*command, f"--output={unbroken}")
    killed(workplace, 12, *command, f"--output={target}")
    assert not target.exists()
    assert "12 records are done" in workplace.run(*command, f"--output={target}")
    assert target.read_bytes() == unbroken.read_bytes()
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert set(records[0]) == {"inputs", "targets", "prediction", "filled"}
    assert all("<extra_id_0>" in record["inputs"] and "<extra_id_0>" in record["targets"] for record in records)
    assert len(records) > 40
    printed = workplace.run("infer", experiment, "--run=asked", "--split=valdation", code=1)
    assert "validation" in printed
    assert "Traceback" not in printed
