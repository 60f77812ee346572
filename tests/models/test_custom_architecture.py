"""The examples of docs/custom_architecture.md, file by file as they stand there, train."""

import json
import os
import subprocess
import sys
from pathlib import Path

import orbax.checkpoint as ocp
import pytest

from t5xpg.run.records import read_jsonl
from tests.docs.pages import INDEX, files_of
from tests.workplace import PATIENCE, REPOSITORY, sentences

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    files = files_of(INDEX.with_name("custom_architecture.md"))
    assert {"languages.gin", "numbers.gin"} < set(files)
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(folder: Path, command: str, experiment: str, *options: str) -> str:
    """What the program prints, from the folder of an example, with a model of a smaller size."""
    small = ("emb_dim=16", "mlp_dim=16", "num_encoder_layers=1", "num_decoder_layers=1")
    sizes = [f"--gin.encoder_decoder.T5Config.{size}" for size in small]
    done = subprocess.run(
        [sys.executable, "-m", "t5xpg", command, experiment, f"--run={folder / 'run'}", *sizes, *options],
        cwd=folder, env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_model_of_batches_of_its_own_trains(folder: Path) -> None:
    for split, seed in (("train", 0), ("validation", 1)):
        lines = [f"{number % 4}\t{text}\n" for number, text in enumerate(sentences(40, seed).splitlines())]
        (folder / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    run(folder, "train", "languages.gin", "--gin.TRAIN_STEPS=11", "--gin.CHECKPOINT_PERIOD=5")
    last = read_jsonl(folder / "run" / "metrics.jsonl")[-1]
    assert last["step"] == 11
    assert last["target_tokens"]
    with ocp.PyTreeCheckpointer() as reader:
        earlier, later = (
            reader.restore(folder / "run" / "checkpoints" / step / "params")["language_embedder"]["embedding"]
            for step in ("10", "11")
        )
    assert earlier.shape[0] == 4
    assert (earlier != later).any(axis=1).all()  # each language has its part in what is learnt


def test_a_task_without_text_trains_is_measured_and_answers(folder: Path) -> None:
    short = ("--gin.TRAIN_STEPS=12", "--gin.EVAL_PERIOD=6", "--gin.INFER_EVAL_PERIOD=12")
    printed = run(folder, "train", "numbers.gin", *short)
    assert "step 12: validation loss" in printed
    written = read_jsonl(folder / "run" / "metrics.jsonl")
    losses = [record["loss"] for record in written if record["split"] == "validation"]
    assert losses[-1] < losses[0]
    (measured,) = [record["metrics"] for record in written if record["split"] == "infer_eval"]
    assert set(measured) == {"exact_match", "token_f1"}
    assert measured["token_f1"] > 0
    run(folder, "eval", "numbers.gin", *short)
    (predictions,) = (folder / "run" / "evaluations").glob("*/predictions/*.jsonl")
    first = json.loads(predictions.read_text().splitlines()[0])
    asked = [int(number) for number in first["inputs"].split()]
    assert first["target"] == " ".join(map(str, sorted(asked)))
    lines = run(folder, "infer", "numbers.gin", "--prompt=9 4 31 7 7 2 16 11", *short).splitlines()
    assert "input       9 4 31 7 7 2 16 11" in lines
    (prediction,) = [line.split()[1:] for line in lines if line.startswith("prediction")]
    assert all(int(number) < 32 for number in prediction)
