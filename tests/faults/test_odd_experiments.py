"""What must hold of any experiment, tried on small ones that are drawn at random.

Rows in are rows out and rows that were left out, each under a reason; `check` and `train` agree whether the experiment
can be trained; a run that is continued has the records of one that was not stopped; predicted metrics say how they were
decoded; what is refused is refused in words.
"""

import itertools
import json
import random
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from t5xpg.experiment import config
from t5xpg.train.train import train
from tests.workplace import EXPERIMENT, Workplace
from tests.written_evaluations import newest

SETTINGS = """
{includes}
MIXTURE_OR_TASK_NAME = '{task}'
TASK_FEATURE_LENGTHS = {lengths}
TRAIN_STEPS = 4
RANDOM_SEED = {seed}
WARMUP_STEPS = 2
STATS_PERIOD = 1
EVAL_PERIOD = 2
CHECKPOINT_PERIOD = 2
USE_CACHED_TASKS = {cached}
"""
DECODING = {"greedy": (), "beam": ("num_decodes=2", "alpha=0.0"), "sample": ("temperature=0.5", "seed=3")}
SENTENCE = "the a dog cat sees finds every small green house — ß 日本 by : <extra_id_0> 12 %"


@dataclass(frozen=True)
class Drawn:
    rows: dict[str, list[str]]  # the lines of each split's file
    form: str
    options: tuple[str, ...]
    supervised: bool
    lengths: dict[str, int]
    cached: bool
    decoding: str
    stopped: bool


def draw(number: int) -> Drawn:
    draw = random.Random(number)
    supervised = draw.random() < 0.6

    def text(longest: int) -> str:
        words = " ".join(draw.choice(SENTENCE.split()) for _ in range(draw.randrange(longest)))
        return "" if draw.random() < 0.1 else words

    def line() -> str:
        if not supervised:
            found = text(60)
            return found if form == ".txt" else json.dumps({"text": found}, ensure_ascii=False)
        pair = (text(8), text(6)) if draw.random() < 0.8 else ("", "")
        broken = draw.random() < 0.1
        if form == ".tsv":
            return pair[0] if broken else "\t".join(pair)
        return json.dumps({"inputs": pair[0]} if broken else {"inputs": pair[0], "targets": pair[1]})

    form = draw.choice((".tsv", ".jsonl") if supervised else (".txt", ".jsonl"))
    rows = {split: [line() for _ in range(draw.choice((30, 60)))] for split in ("train", "validation")}
    options = ["--fields=inputs,targets", "--on-bad-line=skip"] if supervised else []
    if not supervised and draw.random() < 0.5:
        options.append(f"--min-characters={draw.choice((20, 101))}")
    lengths = {"inputs": draw.choice((16, 64, 128)), "targets": draw.choice((8, 32, 96))}
    method = draw.choice(sorted(DECODING))
    return Drawn(rows, form, tuple(options), supervised, lengths, draw.random() < 0.5, method, draw.random() < 0.5)


def run(place: Workplace, *arguments: str) -> tuple[int, str]:
    said, code = place.run_here(arguments)
    assert code in (0, 1), said
    assert "Traceback" not in said, said
    return code, said


def try_number(number: int, folder: Path) -> str:
    """Try the experiment of a number in an empty folder; one line on what came of it. Raises AssertionError."""
    drawn, place, files = draw(number), Workplace(folder), []
    for split, lines in drawn.rows.items():
        (folder / f"{split}{drawn.form}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        files.append(f"{split}={folder / split}{drawn.form}")
    code, said = run(place, "data", "odd", f"--files={' '.join(files)}", *drawn.options)
    if code:
        return f"export refused: {said.splitlines()[-1]}"
    manifest = json.loads((folder / "data" / "odd" / "manifest.json").read_text())
    left_out = manifest["filter"].get("left_out", {"counts": {}})["counts"]
    kept = sum(split["documents"] for split in manifest["splits"].values())
    assert kept + sum(left_out.values()) == sum(map(len, drawn.rows.values())), (kept, left_out)
    assert all(f"{count} {reason}" in said for reason, count in left_out.items()), said

    task = "odd_text_to_text" if drawn.supervised else "odd_span_corruption"
    includes = "include 'gin/objectives/none.gin'" if drawn.supervised else ""
    experiment = folder / "odd" / "odd.gin"
    experiment.parent.mkdir()
    settings = {"includes": includes, "task": task, "lengths": drawn.lengths, "seed": number, "cached": drawn.cached}
    experiment.write_text(EXPERIMENT + SETTINGS.format(**settings))
    checked, findings = run(place, "check", str(experiment))
    trained, said = run(place, "train", str(experiment), "--run=whole")
    assert checked == trained, f"check: {findings}\ntrain: {said}"
    if trained:
        return f"not to be trained: {said.splitlines()[-1]}"
    cut = re.findall(r"examples: (.*)", said)
    assert bool(cut) == drawn.supervised, said
    whole = folder / "runs" / "whole"
    if drawn.stopped:
        with pytest.MonkeyPatch.context() as patch:
            place.enter(patch)
            train(config.load(str(experiment)), folder / "runs" / "stopped", until=2)
        _, said = run(place, "train", str(experiment), "--run=stopped")
        assert "4 steps  2 of them in" in said, said
        for name in ("metrics.jsonl", "batches.sha256"):
            records = (folder / "runs" / "stopped" / name).read_bytes()
            assert records == (whole / name).read_bytes(), name

    decoding = [f"--gin.decoding.DecodingConfig.{one}" for one in DECODING[drawn.decoding]]
    method = f"--gin.decoding.DecodingConfig.method='{drawn.decoding}'"
    code, said = run(place, "eval", str(experiment), "--run=whole", method, *decoding)
    assert code == 0, said
    evaluation = newest(whole).record
    measured = {task} if drawn.supervised else set()
    assert set(evaluation.get("predicted", {})) == set(evaluation.get("metrics", {})) == measured
    code, said = run(place, "report", str(experiment), "--run=whole")
    assert code == 0, said
    if drawn.supervised:
        found = evaluation["predicted"][task]
        assert found["examples"] == manifest["splits"]["validation"]["documents"]
        assert found["decoding"]["method"] == drawn.decoding
        for option in DECODING[drawn.decoding]:
            name, _, value = option.partition("=")
            assert found["decoding"][name] == json.loads(value)
    return f"trained {task}, {drawn.decoding}{', continued' if drawn.stopped else ''}"


@pytest.mark.process
def test_an_odd_experiment_that_is_stopped_and_continued(tmp_path: Path) -> None:
    try_number(1, tmp_path)


@pytest.mark.proof
def test_an_hour_of_odd_experiments() -> None:
    end = time.monotonic() + 3600
    for number in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count(1000)):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{number}: {try_number(number, Path(folder))}")
