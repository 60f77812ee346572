"""`make infer` of a file, killed and started again, and of a split."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workplace import PATIENCE, REPOSITORY, Workplace

pytestmark = pytest.mark.process

SAMPLES = ["--gin_file=gin/decoding/sample.gin", "--gin.decoding.DecodingConfig.num_decodes=2"]


def test_a_killed_file_has_the_bytes_of_an_unbroken_one(workplace: Workplace, pretrained: Path) -> None:
    source, target, unbroken = (workplace.folder / name for name in ("asked.jsonl", "killed.jsonl", "unbroken.jsonl"))
    lines = [{"id": n, "inputs": f"the {'very ' * (n % 5)}old <extra_id_0> sees it"} for n in range(11)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["infer", str(workplace.experiment), f"--run={pretrained}", f"--input={source}", *SAMPLES]
    workplace.run(*command, f"--output={unbroken}")
    killed = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "killed_inference.py"), "8", *command, f"--output={target}"],
        env={**workplace.environment, "PYTHONPATH": str(REPOSITORY)}, cwd=REPOSITORY, text=True, timeout=PATIENCE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    assert not target.exists()
    assert len(target.with_name("killed.jsonl.partial").read_bytes().splitlines()) == 1 + 8
    assert "8 records are done, going on behind them" in workplace.run(*command, f"--output={target}")
    assert target.read_bytes() == unbroken.read_bytes()
    assert not target.with_name("killed.jsonl.partial").exists()
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert [record["id"] for record in records] == list(range(11))
    assert all(len(record["predictions"]) == len(record["scores"]) == 2 for record in records)
    assert all(record["scores"] == sorted(record["scores"], reverse=True) for record in records)
    assert len({record["prediction"] for record in records}) > 8  # rows are numbered on, batch after batch


def test_a_split(workplace: Workplace, pretrained: Path) -> None:
    target = workplace.folder / "split.jsonl"
    beams = ["--gin_file=gin/decoding/beam.gin", "--gin.decoding.DecodingConfig.return_all_decodes=False"]
    command = ["infer", str(workplace.experiment), f"--run={pretrained}", f"--output={target}", *beams]
    workplace.run(*command, "--split=validation")
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert set(records[0]) == {"inputs", "targets", "prediction", "filled"}
    assert all("<extra_id_0>" in record["inputs"] and "<extra_id_0>" in record["targets"] for record in records)
    assert len(records) > 40
