"""What a proof of several hosts compares; whole proofs are `make prove-hosts`."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from t5xpg.run.directory import RunDirectory
from t5xpg.study.proofs import hosts
from t5xpg.study.proofs.hosts import LOSS_TOLERANCE, PARAMETER_TOLERANCE, ComparedRun, prove_hosts
from tests.refusals import refused

ROW = ComparedRun("2 processes", True, 1e-7, 1e-8, True)


def test_every_difference_counts() -> None:
    assert ROW.holds
    assert dataclasses.replace(ROW, exact=None).holds
    wrong = {"batches": [False], "losses": [2 * LOSS_TOLERANCE, float("nan")], "exact": [False]}
    for name, values in {**wrong, "parameters": [2 * PARAMETER_TOLERANCE]}.items():
        assert not any(dataclasses.replace(ROW, **{name: value}).holds for value in values), name


def write(folder: Path, losses: list[float]) -> RunDirectory:
    folder.mkdir()
    run = RunDirectory(folder)
    records = [{"step": step, "split": "train", "loss": loss} for step, loss in enumerate(losses)]
    records.append({"step": 1, "split": "infer_eval", "metrics": {}})  # what has no loss
    run.metrics_jsonl.write_text("".join(json.dumps(record) + "\n" for record in records))
    return run


def test_differences_of_losses_and_parameters(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one", [4.0, 2.0]), write(tmp_path / "other", [4.0, 2.002])
    assert hosts._loss_difference(one, one) == 0
    assert hosts._loss_difference(one, other) == pytest.approx(1e-3)
    assert hosts._loss_difference(one, write(tmp_path / "short", [4.0])) == float("inf")
    arrays = {"a": np.array([3.0, 0.0], np.float32), "b": np.array([[4.0]], np.float32)}
    moved = {**arrays, "a": np.array([3.0, 0.05], np.float32)}
    for others, distance in ((arrays, 0), (moved, pytest.approx(0.01)), ({"a": arrays["a"]}, float("inf"))):
        assert hosts._relative_l2(arrays, others) == distance


def test_what_cannot_be_proven(own_place: Path) -> None:
    gin, proof = str(own_place / "small.gin"), own_place / "proof"
    with refused("PROCESSES=3", "2, 4, 8"):
        prove_hosts(gin, [], processes=3, path=proof)
    with refused("12 steps", "every 5"):
        prove_hosts(gin, ["--gin.CHECKPOINT_PERIOD=5"], processes=2, path=proof)
    proof.mkdir(exist_ok=True)
    for name in ("on_1", "on_two", "mine"):  # the first one is of a proof that was stopped at once
        (proof / name).mkdir()
    (proof / "mine" / "run.json").write_text("{}")
    with refused("mine, on_two"):
        prove_hosts(gin, [], processes=2, path=proof)
    assert (proof / "mine" / "run.json").exists()
