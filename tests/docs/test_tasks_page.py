"""The examples of docs/tasks.md as they stand there: records of three kinds, mixtures, a task of classes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.workplace import FAST_COMPILATION, REPOSITORY

pytestmark = pytest.mark.process

PAGE = (REPOSITORY / "docs" / "tasks.md").read_text(encoding="utf-8")
FILE = re.compile(r"^```\w+\n# (\S+\.\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^((?:PYTHONPATH=\. )?make .*)$", re.MULTILINE)
SIZES = ("emb_dim=16", "mlp_dim=16", "num_heads=2", "head_dim=8", "num_encoder_layers=1", "num_decoder_layers=1")
SMALL = [
    *(f"--gin.encoder_decoder.T5Config.{size}" for size in SIZES),
    "--gin.TRAIN_STEPS=3",
    "--gin.WARMUP_STEPS=1",
    "--gin.EVAL_PERIOD=3",
    "--gin.EVAL_STEPS=2",
    "--gin.INFER_EVAL_PERIOD=3",
    "--gin.INFER_EVAL_STEPS=1",
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 12}",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the page, and those that it reads."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, text in FILE.findall(PAGE):
        (folder / name).write_text(text, encoding="utf-8")
    for split, count in (("train", 40), ("valid", 6)):
        (folder / f"{split}.en").write_text("".join(f"A dog, number {n}.\n" for n in range(count)))
        (folder / f"{split}.de").write_text("".join(f"Ein Hund, Nummer {n}.\n" for n in range(count)))
    for language in ("en", "de"):
        subprocess.run(["gzip", f"train.{language}"], cwd=folder, check=True)
    (folder / "reviews.tsv").write_text("".join(f"I was there {n} times.\t{n % 2}\n" for n in range(40)))
    (folder / "held_out.jsonl").write_text('{"text": "Never again.", "label": "0"}\n' * 3)
    questions = [{"question": f"What is {n}?", "answer": f"It is {n}."} for n in range(100)]
    (folder / "quiz.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    return folder


def run(place: Path, command: str, *more: str, code: int = 0) -> str:
    """A command of the page, as the Makefile calls the program."""
    words = shlex.split(command.removeprefix("PYTHONPATH=. ").removeprefix("make "))
    values = dict(word.split("=", 1) for word in words[1:])
    name = values.pop("DATASET", None) or values.pop("TASK", None) or values.pop("EXP")
    options = [
        f"--{'gin-overrides' if key == 'GIN' else key.lower().replace('_', '-')}={values[key]}" for key in values
    ]
    folders = {f"T5XPG_{name}_DIR": str(place / name.lower()) for name in ("DATA", "CACHE", "RUNS")}
    done = subprocess.run(
        [sys.executable, "-m", "t5xpg", words[0], name, *options, *more],
        cwd=place,
        env={
            **os.environ,
            **folders,
            "PYTHONPATH": f"{place}{os.pathsep}{REPOSITORY}",
            "XLA_FLAGS": FAST_COMPILATION,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == code, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def exported(place: Path) -> dict[str, str]:
    """What the exports and the cache of the page say, by command."""
    commands = [found for found in COMMAND.findall(PAGE) if " FIELDS=" in found or " cache " in found]
    assert len(commands) == 4
    return {command: run(place, command) for command in commands}


def test_records_and_mixtures(exported: dict[str, str]) -> None:
    said = dict(zip(("captions", "reviews", "quiz", "cache"), exported.values(), strict=True))
    assert "captions: train 40 records 0.0 MB, validation 6 records" in said["captions"]
    assert "reviews: train 40 records 0.0 MB, validation 3 records" in said["reviews"]
    assert "quiz: train 92 records 0.0 MB, validation 4 records 0.0 MB, test 4 records" in said["quiz"]
    cached = [line.removesuffix(" is cached") for line in said["cache"].splitlines() if line.endswith("is cached")]
    assert cached == ["captions_translate_de_en", "captions_translate_en_de", "quiz_text_to_text"]


def test_pieces_and_streams(place: Path) -> None:
    first, second = [found for found in COMMAND.findall(PAGE) if " SELECT=" in found]
    assert "\npycode_a: train " in run(place, first)
    assert re.search(r"^pycode_absl_flags_rich_[0-9a-f]{8}: train ", run(place, second), re.MULTILINE)
    (stream,) = [found for found in COMMAND.findall(PAGE) if " HUB=" in found]
    # a folder laid out like the dataset of the hub
    files = "  data_files:\n  - split: train\n    path: data/dan_Latn/train/*\n"
    hub = place / "hub"
    (hub / "data" / "dan_Latn" / "train").mkdir(parents=True)
    (hub / "README.md").write_text(f"---\nconfigs:\n- config_name: dan_Latn\n{files}---\n")
    rows = pyarrow.table({"text": [f"{number}. {'Et stykke tekst. ' * 10}" for number in range(50)]})
    pyarrow.parquet.write_table(rows, hub / "data" / "dan_Latn" / "train" / "000_00000.parquet")
    said = run(place, re.sub(r"HUB=\S+", f"HUB={hub}", stream))
    assert "danish: train 46 documents 0.0 MB, validation 2 documents 0.0 MB, test 2 documents" in said


@pytest.mark.usefixtures("exported")
def test_a_mixture_trains_and_is_measured_task_by_task(place: Path) -> None:
    (command,) = [found for found in COMMAND.findall(PAGE) if "RUN=nested" in found]
    run(place, command, *SMALL)
    records = [json.loads(line) for line in (place / "runs/nested/metrics.jsonl").read_text().splitlines()]
    tasks = {"captions_translate_de_en", "captions_translate_en_de", "quiz_text_to_text"}
    losses = {one["task"] for one in records if one["split"] == "validation" and "task" in one}
    metrics = {one["task"]: set(one["metrics"]) for one in records if one["split"] == "infer_eval"}
    assert losses == set(metrics) == tasks
    assert metrics["captions_translate_de_en"] == {"bleu", "bleu_signature", "chrf", "chrf_signature"}


def test_the_task_of_classes(place: Path) -> None:
    run(place, "make data DATASET=pypackages LIMIT=300")
    train, validate, test = [
        found for found in COMMAND.findall(PAGE) if re.search(r"EXP=packages.gin($| SPLIT)", found)
    ]
    assert "pypackages_classify: accuracy" in run(place, train, *SMALL)
    assert "majority" in run(place, validate, *SMALL)
    assert "written to" in run(place, test, *SMALL)
    for split, file in (("validation", "evaluation.json"), ("test", "evaluation/test/evaluation.json")):
        found = json.loads((place / "runs/packages" / file).read_text())
        assert found["split"] == split
        assert set(found["metrics"]["pypackages_classify"]) == {"accuracy", "macro_f1", "majority"}
    assert (place / "runs/packages/evaluation/test/predictions/pypackages_classify.jsonl").exists()
    said = run(place, f"{test.removesuffix('test')}tset", *SMALL, code=1)
    assert "has no split 'tset'. Did you mean test" in said


@pytest.mark.usefixtures("exported")
def test_mixtures_of_tasks_that_there_are_not(place: Path) -> None:
    (place / "wrong.py").write_text(
        (place / "my_mixtures.py").read_text().replace("captions_translate_en", "caption_translate_en")
    )
    said = run(place, "make cache TASK=nested MODULE_IMPORT=wrong", code=1)
    assert (
        "wrong names the task caption_translate_en_de, which there is not. Did you mean captions_translate_en" in said
    )
    assert 'type: make data DATASET=caption FIELDS=en,de FILES="train=…"' in said
